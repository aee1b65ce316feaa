// Memory of the outputs whose shape only a run can tell, which grows as the run asks for it.
#ifndef DLC_PYTHON_LATE_OUTPUTS_H
#define DLC_PYTHON_LATE_OUTPUTS_H

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "c_interface.h"
#include "memory.h"

namespace dlc_python {

struct LateOutputs {
  std::vector<dlc_runtime::AlignedMemory> blocks;  // one for each output, or none at all

  // While this lives, the context asks for it.
  class Asked {
   public:
    Asked(LateOutputs &late, dlc_context *context)
        : context_(late.blocks.empty() ? nullptr : context) {
      if (context_ != nullptr) check(dlc_context_set_output_memory(context_, memory, &late));
    }
    ~Asked() {
      if (context_ != nullptr) dlc_context_set_output_memory(context_, nullptr, nullptr);
    }
    Asked(const Asked &) = delete;
    Asked &operator=(const Asked &) = delete;

   private:
    static void *memory(void *user, std::size_t index, std::int64_t bytes) {
      try {
        return static_cast<LateOutputs *>(user)->blocks[index].at_least(bytes);
      } catch (const std::bad_alloc &) {
        return nullptr;
      }
    }
    dlc_context *context_;
  };
};

}  // namespace dlc_python

#endif
