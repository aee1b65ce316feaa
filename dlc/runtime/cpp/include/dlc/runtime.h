/* dlc runtime: load a compiled model and run it. The C interface.
 *
 * Functions that can fail return a dlc_status: 0 is success; otherwise
 * dlc_last_error() says what, where and what to do. No C++ exception leaves a
 * function. A module may be used by any number of threads at once; a context by
 * one thread at a time. Linux on x86-64 and aarch64.
 */
#ifndef DLC_RUNTIME_H
#define DLC_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#include "dlc/dlpack.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dlc_status {
  DLC_OK = 0,
  DLC_INVALID_ARGUMENT = 1, /* the call itself is wrong: a NULL, an index out of range */
  DLC_NOT_FOUND = 2,        /* the file cannot be opened or read */
  DLC_BAD_ARTIFACT = 3,     /* not a compiled model, or a damaged one */
  DLC_INCOMPATIBLE = 4,     /* for another ABI, architecture or CPU */
  DLC_BAD_TENSOR = 5,       /* a tensor that does not fit its input or output */
  DLC_RUN_FAILED = 6,       /* the model refused the values it was given */
  DLC_NO_MEMORY = 7,
  DLC_INTERNAL = 8 /* dlc is wrong */
} dlc_status;

/* How dlc_module_load checks a file. */
enum {
  DLC_VERIFY_FULL = 0,     /* everything, the hash of all bytes included */
  DLC_VERIFY_SKIP_HASH = 1 /* all but the hash: for files just written, or very large ones */
};

/* An element of a tensor of texts: UTF-8, not terminated. The type code of such a tensor is
 * kDLOpaqueHandle, its bits are 128. */
typedef struct dlc_text {
  const char *data; /* NULL is allowed where there are no bytes */
  size_t bytes;
} dlc_text;

typedef struct dlc_module dlc_module;
typedef struct dlc_context dlc_context;

/* One dimension of an input or output. */
typedef struct dlc_dim {
  int64_t value;    /* the constant, or -1 */
  const char *text; /* "224", "batch", "(h + 1) // 2" */
} dlc_dim;

/* An input or output. Everything in it is owned by the module. */
typedef struct dlc_tensor_info {
  const char *name;
  DLDataType dtype;
  int32_t ndim;
  const dlc_dim *dims;
} dlc_tensor_info;

/* A size variable. `name` is owned by the module. */
typedef struct dlc_size_info {
  const char *name;
  int64_t min;
  int64_t max; /* -1: not bounded */
} dlc_size_info;

/* What went wrong in the last failed call on this thread, or "". Valid until
 * this thread's next call of a function that returns a dlc_status. */
const char *dlc_last_error(void);
/* The name of a status, as "DLC_BAD_TENSOR". Static. */
const char *dlc_status_name(dlc_status status);
/* The version of this runtime, as "0.1.0". Static. */
const char *dlc_runtime_version(void);

/* ---- modules: immutable, shared by all threads -------------------------- */

/* Loads a compiled model after checking that it is whole and fits this machine.
 * The code that runs is in the file that was checked, whatever the path means
 * later. While the module lives, replace the file (rename), never write into it:
 * it is mapped. `*out` is owned by the caller; release it with dlc_module_free. */
dlc_status dlc_module_load(const char *path, uint32_t flags, dlc_module **out);
/* The same from memory, which is copied and may be released after the call. */
dlc_status dlc_module_load_bytes(const void *data, size_t size, uint32_t flags, dlc_module **out);
/* Gives the module up; accepts NULL. Contexts made from it stay usable: the
 * code is unloaded with the last of them. */
void dlc_module_free(dlc_module *module);

size_t dlc_module_input_count(const dlc_module *module);
size_t dlc_module_output_count(const dlc_module *module);
size_t dlc_module_size_count(const dlc_module *module);
dlc_status dlc_module_input(const dlc_module *module, size_t index, dlc_tensor_info *out);
dlc_status dlc_module_output(const dlc_module *module, size_t index, dlc_tensor_info *out);
dlc_status dlc_module_size(const dlc_module *module, size_t index, dlc_size_info *out);
/* Free metadata as JSON text. Owned by the module. */
const char *dlc_module_metadata(const dlc_module *module);
/* The encoded manifest. Owned by the module. */
const void *dlc_module_manifest(const dlc_module *module, size_t *size);
/* A descriptor of the artefact's file, to be read with pread. Owned by the module. */
int dlc_module_file(const dlc_module *module);

/* ---- contexts: the memory of one run, for one thread at a time ---------- */

/* `*out` is owned by the caller; release it with dlc_context_free. */
dlc_status dlc_context_create(const dlc_module *module, dlc_context **out);
/* Accepts NULL. Frees the outputs the context owns. */
void dlc_context_free(dlc_context *context);

/* Checks `inputs` (only types and shapes; data is not read) and computes the
 * shapes of the outputs, for dlc_context_output_shape. `inputs` holds one tensor
 * for each input, in the model's order. */
dlc_status dlc_context_plan(dlc_context *context, const DLTensor *inputs);
/* Shape of an output after dlc_context_plan or dlc_run. `*dims` is owned by the
 * context and valid until its next plan or run. After dlc_context_plan a
 * dimension that depends on the elements of the inputs is -1. */
dlc_status dlc_context_output_shape(const dlc_context *context, size_t index, int32_t *ndim,
                                    const int64_t **dims);

/* Runs the model. `inputs` and `outputs` hold one tensor for each input and
 * output, in the model's order. Tensors are dense, row-major and in CPU memory,
 * aligned for their element type; an output must not overlap any other tensor.
 *
 * An output whose `data` is not NULL is written there: its type and shape are
 * checked. One whose `data` is NULL is allocated by the context, and the whole
 * DLTensor is filled in; its memory and shape are owned by the context and valid
 * until the context's next plan or run, or its end. This is how to receive an
 * output of which dlc_context_plan cannot tell the shape; where memory is given
 * for it, its shape must be the one that the run finds.
 *
 * After a failure the context and the module remain usable; the content of the
 * outputs is then undefined. */
dlc_status dlc_run(dlc_context *context, const DLTensor *inputs, DLTensor *outputs);

/* Memory of at least `bytes` bytes for an output, aligned for its element type; NULL where there is
 * none. */
typedef void *(*dlc_output_memory)(void *user, size_t index, int64_t bytes);
/* From the next run on, asks `memory` instead of allocating outputs whose `data` is NULL: they are
 * the caller's then, who need not copy what is to outlive the next run. It is called during runs,
 * in their thread, with the `user` given here; it must not throw, nor use the context. Their shape
 * stays the context's. NULL: allocates again. */
dlc_status dlc_context_set_output_memory(dlc_context *context, dlc_output_memory memory,
                                         void *user);

/* One step of a run as it was timed: a kernel or a copy. */
typedef struct dlc_step {
  int64_t step; /* its number in the manifest's metadata, under "steps" */
  int64_t time_ns;
  int64_t operations; /* on floats; a multiply-add is two */
  int64_t bytes;      /* that it must at least read and write */
} dlc_step;

/* The same as dlc_run, and how long each step took, in order. `*steps` is owned by the context
 * and valid until its next run. DLC_INCOMPATIBLE where the model was built without this. */
dlc_status dlc_profile(dlc_context *context, const DLTensor *inputs, DLTensor *outputs,
                       const dlc_step **steps, size_t *count);

/* ---- threads: one pool for the whole process ---------------------------- */

/* Sets the number of threads that work on one run, the caller included; 0 means
 * automatic: DLC_NUM_THREADS if set (what is no number from 1 to 1024 there is said once on
 * standard error, and ignored), else the least of the affinity mask, the cgroup CPU
 * quota and the physical cores. Waits for the loop in progress. */
dlc_status dlc_set_num_threads(uint32_t count);
uint32_t dlc_num_threads(void);

/* ---- GPUs --------------------------------------------------------------- */

/* DLC_OK where models for a GPU can run: there are an NVIDIA driver and a GPU. Else
 * dlc_last_error() says what is missing. */
dlc_status dlc_find_gpu(void);

/* The same as dlc_run, in a stream of the caller's: a CUstream of the primary context of the first
 * GPU, as CUDA's runtime and frameworks use. Only for models that run there.
 *
 * With such a model, here and with dlc_run, each tensor lies in the memory of the CPU or, with a
 * device of kDLCUDA, in that of the GPU; those on the GPU are used where they are if they begin at
 * multiples of 16 bytes. Returns as soon as everything is in the stream if all tensors are on the
 * GPU, so they must live until the stream is done with them; else when the outputs are there. What
 * the model refuses after that, as an index outside of its tensor, is an error of the next run.
 * dlc_run returns when the outputs are there, and expects inputs that are. */
dlc_status dlc_run_in_stream(dlc_context *context, const DLTensor *inputs, DLTensor *outputs,
                             void *stream);

/* Memory of the GPU. It keeps what it needs of the module. */
typedef struct dlc_gpu_memory dlc_gpu_memory;
/* `*out` is owned by the caller; release it with dlc_gpu_memory_free. */
dlc_status dlc_gpu_memory_create(const dlc_module *module, size_t bytes, dlc_gpu_memory **out);
void dlc_gpu_memory_free(dlc_gpu_memory *memory);
void *dlc_gpu_memory_data(const dlc_gpu_memory *memory);
/* Copies its first bytes to the CPU, behind what is in the stream. */
dlc_status dlc_gpu_memory_read(const dlc_gpu_memory *memory, void *to, size_t bytes, void *stream);

/* ---- files -------------------------------------------------------------- */

/* Whether the file of a compiled model is whole: its size, its end and the hash
 * over all of it. Unlike dlc_module_load it loads nothing, and takes models for
 * other machines. */
dlc_status dlc_check_file(const char *path);
/* XXH64 (seed 0) of all bytes of a file; beyond 1 MiB, of the hashes of each MiB. */
dlc_status dlc_hash_file(const char *path, uint64_t *out);

#ifdef __cplusplus
}
#endif
#endif /* DLC_RUNTIME_H */
