/* The contract between a compiled model and the program that runs it.
 *
 * A model is a shared library with one exported symbol, `dlc_model_query`. It
 * keeps no state and calls nothing but libc; what it needs from outside
 * (threads, scratch memory) it takes from the `dlc_host` given to each call.
 * Everything here is frozen for one DLC_ABI_VERSION.
 */
#ifndef DLC_ABI_H
#define DLC_ABI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DLC_ABI_VERSION 3u
#define DLC_MODEL_SYMBOL "dlc_model_query"
/* Added to the version asked for: the model that reports its steps, see dlc_profile_host. */
#define DLC_PROFILE 0x80000000u
/* Alignment, in bytes, of the arena, of scratch memory and of every constant. */
#define DLC_ALIGNMENT 64

/* Runs the iterations [begin, end) of a parallel loop. */
typedef void (*dlc_body)(void *closure, int64_t begin, int64_t end);

/* What the caller offers a model. The caller owns it; it must outlive the call. */
typedef struct dlc_host {
  void *self; /* passed back as the first argument of each function */
  /* Calls `body` on disjoint ranges that together cover [0, extent), on any
   * threads, and returns when all are done. Never called from within a body. */
  void (*parallel)(void *self, dlc_body body, void *closure, int64_t extent);
  /* Memory of the calling thread: at least `bytes` bytes, DLC_ALIGNMENT-aligned,
   * valid until this thread asks for more than before, or the end of `run`. A
   * request for no more than an earlier one returns the same memory, unchanged.
   * Calls inside of a body and calls around the loop get memory of their own.
   * NULL when there is no memory; the model then gives up by calling `fail`. */
  void *(*scratch)(void *self, int64_t bytes);
  /* Records that the run failed, and why. Callable from any thread; the first
   * message wins. `message` is copied. */
  void (*fail)(void *self, const char *message);
  /* Memory for a tensor whose size was not known when the run began: at least
   * `bytes` bytes, DLC_ALIGNMENT-aligned, private to this run, valid until it is
   * released or the run ends. NULL when there is none, as above. Never called
   * from within a body; nor are the two functions below. */
  void *(*allocate)(void *self, int64_t bytes);
  /* Gives memory of `allocate` up before the run ends; accepts NULL. */
  void (*release)(void *self, void *memory);
  /* Says the shape of an output for which `plan` could not tell it, and returns
   * where to write it. Called once for each of them. NULL where the caller gave
   * memory for another shape, which is recorded then, or there is none, which the
   * model says by calling `fail`. */
  void *(*output)(void *self, uint32_t index, const int64_t *dims);
} dlc_host;

/* What the caller offers a model that reports its steps: a dlc_host, and one function more. */
typedef struct dlc_profile_host {
  dlc_host host; /* `run` is given a pointer to this one */
  /* Called by the thread that called `run` right before each step, and with step = -1 behind the
   * last. Steps are numbered as in the manifest; those of a loop repeat. `operations` counts
   * arithmetic on floats, `bytes` what the step must at least read and write. */
  void (*step)(void *self, int64_t step, int64_t operations, int64_t bytes);
} dlc_profile_host;

/* Functions of dlc_text_host. Sizes and buffers of each are listed; the last buffer is written. A
 * text is passed as its number, an int64_t, but for `dlc_text` of dlc/runtime.h at the edges. */
enum {
  DLC_TEXT_NUMBER = 0,       /* count | dlc_text | number */
  DLC_TEXT_TEXT = 1,         /* count | number | dlc_text, valid until the next run */
  DLC_TEXT_CONSTANT = 2,     /* count | bytes, where each text ends (int64_t) | number */
  DLC_TEXT_CONCAT = 3,       /* count | number, number | number */
  DLC_TEXT_MAP = 4,          /* count, rows | number, pairs of characters (int32_t) | number */
  DLC_TEXT_MATCH = 5,        /* count, states | number, next states (uint16_t), ends | bool */
  DLC_TEXT_COUNT_FIELDS = 6, /* count, most cuts | number, delimiter | int64_t */
  DLC_TEXT_FIELDS = 7,       /* count, most cuts, width | number, delimiter | number */
  DLC_TEXT_READ_F64 = 8,     /* count | number | double */
  DLC_TEXT_READ_I64 = 9,     /* count | number | int64_t */
  DLC_TEXT_WRITE_F32 = 10,   /* count | float | number */
  DLC_TEXT_WRITE_F64 = 11,   /* count | double | number */
  DLC_TEXT_WRITE_I64 = 12,   /* count | int64_t | number */

  /* The tokens that automata find. Their states lie one behind the other: next states (uint16_t) for
   * each byte; where a match may end (bits: 1 the text, 2 before a byte of no word, 4 of a word);
   * and for each automaton the states where a match begins: with the text, behind a byte of no word,
   * of a word. `between`: tokens are what lies between matches, not these. */
  DLC_TEXT_COUNT_TOKENS = 13, /* count, automata, least characters, between | number, next states,
                                 ends, begins (uint16_t) | int64_t */
  DLC_TEXT_TOKENS = 14,       /* the same, marks, width | the same | number */
  DLC_TEXT_PLACES = 15        /* count, keys | numbers, keys | int64_t: the first key that is equal,
                                 -1 for none */
};

/* What the caller offers a model that computes with texts, whether it reports its steps or not. */
typedef struct dlc_text_host {
  dlc_profile_host profile;
  /* Calls a function of the list above. Never called from within a body. Returns 0, or 1 after
   * `fail`. */
  int32_t (*text)(void *self, uint32_t function, const int64_t *sizes, void *const *buffers);
} dlc_text_host;

/* What `run` and `plan` return where no memory holds a tensor of the sizes that they found. */
#define DLC_RUN_NO_MEMORY 2

/* What a model offers. Owned by the model; immutable; shared by all threads. */
typedef struct dlc_model {
  uint32_t abi_version; /* DLC_ABI_VERSION the model was built for */
  uint32_t input_count;
  uint32_t output_count;
  uint32_t size_count; /* number of size variables, in the manifest's order */
  /* Computes from the size variables the dimensions of all outputs (one after
   * the other, in order) and the bytes of arena that `run` needs. A dimension
   * is -1 where it depends on more than the size variables: on elements.
   * Returns 0, or after `host->fail` DLC_RUN_NO_MEMORY, or 1 when the sizes do
   * not fit the model. */
  int32_t (*plan)(const dlc_host *host, const int64_t *sizes, int64_t *output_dims,
                  int64_t *arena_bytes);
  /* Computes the outputs. Tensors are dense, row-major, in the order of the
   * manifest; they may have any alignment their element type allows. `arena` is
   * DLC_ALIGNMENT-aligned, private to this call; its content is irrelevant
   * before and after. `outputs` holds NULL for each output that has a dimension
   * of -1. Inputs are not written. Returns 0, or after `host->fail` 1, or
   * DLC_RUN_NO_MEMORY. */
  int32_t (*run)(const dlc_host *host, const int64_t *sizes, const void *const *inputs,
                 void *const *outputs, void *arena);
} dlc_model;

/* Added to the version asked for: the dlc_gpu_model of a model whose kernels run on a GPU. */
#define DLC_GPU 0x40000000u

/* Kernels compiled for one kind of GPU. Owned by the model. */
typedef struct dlc_gpu_image {
  const void *data;
  int64_t bytes;
  uint32_t unit; /* images of one unit hold the same kernels */
  uint32_t kind; /* 0: cubin, 1: PTX text */
  uint32_t arch; /* 90 for sm_90 and compute_90 */
  uint32_t reserved;
} dlc_gpu_image;

typedef struct dlc_gpu_kernel {
  const char *name;
  uint32_t unit;        /* the images that hold it */
  uint32_t threads;     /* of one block */
  uint32_t param_count; /* 64 bits each: the buffers, then sizes */
  uint32_t shared_bytes; /* of each block's memory, to ask for at the launch */
  uint32_t buffer_count;
  uint32_t input_count; /* the first buffers, which are read; the others are written, too */
} dlc_gpu_kernel;

/* What a model offers whose kernels run on a GPU. All tensors its `run` is given lie in the memory
 * of the GPU, the arena too, which is full of zeros before the first run and kept for the next
 * one; behind the inputs come the constants, which the caller copies there once. `run` returns when
 * everything is launched. */
typedef struct dlc_gpu_model {
  dlc_model model; /* `input_count` counts the constants too; `run` takes a dlc_gpu_host */
  uint32_t kernel_count;
  uint32_t image_count;
  uint32_t constant_count;
  uint32_t waits; /* 1: for some sizes `run` waits for the GPU, or asks for memory: no graph replays it.
                   * A runtime may find that out by recording, as this one does, and not look here. */
  const dlc_gpu_kernel *kernels;
  const dlc_gpu_image *images;
  const int64_t *constant_offsets; /* of each constant in `weights`, in bytes */
  const void *weights;
  int64_t weight_bytes;
} dlc_gpu_model;

/* What the caller offers such a model besides a dlc_host. After a failure nothing happens. Memory of
 * `allocate` and of `output` is memory of the GPU. */
typedef struct dlc_gpu_host {
  dlc_host host; /* `run` is given a pointer to this one */
  /* Launches a kernel as if behind all others; `params` points to the value of each parameter, and
   * `bytes` says how much memory each buffer has. Launches that share no memory, or only read it,
   * may run at the same time. */
  void (*launch)(void *self, uint32_t kernel, int64_t blocks, void **params, const int64_t *bytes);
  /* Memory of the CPU for one kernel that runs there. NULL when there is none. */
  void *(*stage)(void *self, int64_t bytes);
  /* Copies from the GPU, or to it, once all that was launched before is done. */
  void (*fetch)(void *self, void *to, const void *of, int64_t bytes);
  void (*send)(void *self, void *to, const void *of, int64_t bytes);
  /* As `fetch`, for a few bytes that decide what is launched next. Returns 0, or 1 after `fail`;
   * then `to` holds nothing. Models that call it answer DLC_GPU_DATA only. */
  int32_t (*read)(void *self, void *to, const void *of, int64_t bytes);
  /* Memory that launches write reports to, of a dlc_gpu_checked_model; else NULL. */
  uint64_t *reports;
} dlc_gpu_host;

/* Added to the version asked for: the dlc_gpu_model of a model whose `run` looks at data of the GPU or
 * allocates memory there, and that has none without this. */
#define DLC_GPU_DATA 0x10000000u

/* Added to the version asked for: the dlc_gpu_checked_model of a model that has indices from data, and
 * that has nothing else. It may do what a model of DLC_GPU_DATA does. */
#define DLC_GPU_CHECKED 0x08000000u

/* A model whose launches report what must not be, such as an index outside of its tensor. A report
 * changes nothing else: all launches stay within their memory. */
typedef struct dlc_gpu_checked_model {
  dlc_gpu_model gpu;
  int64_t report_bytes; /* of the reports, which are zeros before the first run; the GPU writes there */
  /* Calls `fail` and returns 1 if there is a report; else 0. `reports` are read on the CPU. */
  int32_t (*explain)(const dlc_host *host, const uint64_t *reports);
} dlc_gpu_checked_model;

/* Added to the version asked for: the dlc_model of a model that computes with texts, and that has
 * none without this. Its `run` takes a dlc_text_host. */
#define DLC_TEXTS 0x20000000u

/* The one exported symbol. Returns NULL when the model was built for another ABI. With
 * DLC_ABI_VERSION | DLC_PROFILE, the same model with a `run` that reports its steps, or NULL; with
 * DLC_ABI_VERSION | DLC_GPU, a pointer to the first member of the dlc_gpu_model, or NULL. */
typedef const dlc_model *(*dlc_model_query_fn)(uint32_t abi_version);

#ifdef __cplusplus
}
#endif
#endif /* DLC_ABI_H */
