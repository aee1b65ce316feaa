# dlc_add_model(<target> MODEL <file.onnx> [TARGET <target string>] [OUTPUT <file.so>] [OPTIONS ...])
#
# Makes a target that compiles an ONNX model with `dlc build` whenever the model changes. The
# compiled model is <target>.so in the current binary folder, unless OUTPUT says otherwise; its
# path is the property DLC_ARTIFACT of the target. OPTIONS go to `dlc build` as they are.
#
#   dlc_add_model(digits MODEL digits.onnx)
#   add_dependencies(app digits)
function(dlc_add_model target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "MODEL;TARGET;OUTPUT" "OPTIONS")
  if(NOT arg_MODEL OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "dlc_add_model(<target> MODEL <file.onnx> [TARGET ...] [OUTPUT ...])")
  endif()
  if(NOT arg_TARGET)
    set(arg_TARGET native)
  endif()
  if(NOT arg_OUTPUT)
    set(arg_OUTPUT ${target}.so)
  endif()
  get_filename_component(model "${arg_MODEL}" ABSOLUTE)
  get_filename_component(output "${arg_OUTPUT}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_BINARY_DIR}")
  find_program(DLC_EXECUTABLE dlc DOC "The dlc compiler" REQUIRED)
  add_custom_command(OUTPUT "${output}"
    COMMAND "${DLC_EXECUTABLE}" build "${model}" --target "${arg_TARGET}" -o "${output}"
      ${arg_OPTIONS}
    DEPENDS "${model}" COMMENT "Compiling ${arg_MODEL}" VERBATIM)
  add_custom_target(${target} ALL DEPENDS "${output}")
  set_target_properties(${target} PROPERTIES DLC_ARTIFACT "${output}")
endfunction()
