# dlc_add_model(<target> MODEL <file.onnx> [TARGET <target string>] [OUTPUT <file.so>] [OPTIONS ...])
#
# Makes a target that compiles an ONNX model with `dlc build` whenever the model, its weights in
# other files, or its tuning log changes. The compiled model is <target>.so in the current binary
# folder, unless OUTPUT says otherwise; its path is the property DLC_ARTIFACT of the target. OPTIONS
# go to `dlc build` as they are. DLC_EXECUTABLE is the compiler; by default that of the environment
# that this file is installed in, else the one of PATH.
#
#   dlc_add_model(digits MODEL digits.onnx)
#   add_dependencies(app digits)
cmake_policy(SET CMP0116 NEW) # paths of depfiles are those of this folder, with Ninja too

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
  dlc_find_executable()
  # The depfile tells what the last build read; a log that is new since then only a look tells.
  cmake_path(REPLACE_EXTENSION model LAST_ONLY tune.db OUTPUT_VARIABLE log)
  file(GLOB log CONFIGURE_DEPENDS "${log}")
  add_custom_command(OUTPUT "${output}"
    COMMAND "${DLC_EXECUTABLE}" build "${model}" --target "${arg_TARGET}" -o "${output}"
      --depfile "${output}.d" ${arg_OPTIONS}
    DEPENDS "${model}" ${log} DEPFILE "${output}.d" COMMENT "Compiling ${arg_MODEL}" VERBATIM)
  add_custom_target(${target} ALL DEPENDS "${output}")
  set_target_properties(${target} PROPERTIES DLC_ARTIFACT "${output}")
endfunction()

function(dlc_find_executable)
  set(folder "${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
  set(hints)
  cmake_path(GET folder PARENT_PATH parent)
  while(NOT parent STREQUAL folder)
    list(APPEND hints "${folder}/bin")
    set(folder "${parent}")
    cmake_path(GET folder PARENT_PATH parent)
  endwhile()
  find_program(DLC_EXECUTABLE dlc HINTS ${hints} DOC "The dlc compiler")
  if(NOT DLC_EXECUTABLE)
    message(FATAL_ERROR "dlc_add_model: there is no dlc in the environment of "
      "${CMAKE_CURRENT_FUNCTION_LIST_DIR}, nor in PATH; name it: -DDLC_EXECUTABLE=/path/to/dlc")
  endif()
endfunction()
