/* ingot's C interface: open an engine file, ask for its inputs and outputs, run it.
 *
 *   ingot_engine* engine;  ingot_session* session;  ingot_options options = {0};
 *   if (ingot_open("net.ingot", &engine) || ingot_session_create(engine, "main", &options, &session)) puts(ingot_last_error());
 *
 * docs/cpp.md is a complete program with all ways to build it; tests/native/run_engine.c is one in C. The library, libingot.so, needs
 * no Python at run time. It comes with the Python package, whose `ingot config` says where it and this header lie:
 *
 *   cc program.c $(ingot config --cflags --libs) -o program
 *
 * Failure. A function that returns int gives 0, or a number of members, for success and -1 for failure. Then
 * ingot_last_error() and ingot_last_error_code() say why, on the calling thread, until its next failing call; a call that
 * succeeds leaves them as they are. No C++ exception leaves this library, and no argument that these comments allow it to
 * judge makes it crash.
 *
 * NULL. A pointer must not be NULL unless its function says that it may; a NULL is refused with the argument's name
 * (code "argument"). An array of no members may be NULL. A function that hands a pointer out through an argument sets it
 * to NULL when it fails. What cannot be judged is the caller's duty: every pointer that is not NULL points to memory that
 * is there, text ends with a 0, and an array has the members that its count says.
 *
 * Ownership. ingot_open makes an engine, ingot_session_create a session; each is given back once, to ingot_close or
 * ingot_session_close, while no other thread uses it. A session keeps what it needs of its engine, which may be closed
 * first. Text, symbols and ports belong to the engine and are there until ingot_close; outputs of a run belong to the
 * session. The library keeps no pointer to anything of the caller's after a call has returned.
 *
 * Threads. An engine may be used by any number of threads at once. A session does one run at a time: a second one that
 * comes meanwhile fails at once (code "busy"). Sessions of one engine run at the same time, and share its weights.
 */
#ifndef INGOT_H
#define INGOT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INGOT_API __attribute__((visibility("default")))
#define INGOT_MAX_RANK 8

#ifdef __cplusplus
typedef enum ingot_dtype : int { /* as C has it: any int may arrive, and those that are no dtype are refused */
#else
typedef enum ingot_dtype {
#endif
  INGOT_FLOAT32, INGOT_BFLOAT16, INGOT_FLOAT16, INGOT_FLOAT64, INGOT_INT8, INGOT_INT16, INGOT_INT32,
  INGOT_INT64, INGOT_UINT8, INGOT_UINT16, INGOT_UINT32, INGOT_UINT64, INGOT_BOOL
} ingot_dtype;

typedef struct ingot_engine ingot_engine;
typedef struct ingot_session ingot_session;

/* A named size that inputs may choose between bounds. */
typedef struct ingot_symbol {
  const char* name;
  int64_t min, max;
} ingot_symbol;

/* An input or output as declared: spec is text, "float32[T, 256]"; a dimension that is no constant is -1 in shape. */
typedef struct ingot_port {
  const char* name;
  const char* spec;
  ingot_dtype dtype;
  int rank;
  int64_t shape[INGOT_MAX_RANK];
} ingot_port;

/* Memory with a type, row-major and without gaps. data may have any alignment, and may be NULL where a dimension is 0. A
 * bool is a byte, 0 or 1. */
typedef struct ingot_tensor {
  void* data;
  ingot_dtype dtype;
  int rank;
  int64_t shape[INGOT_MAX_RANK];
} ingot_tensor;

/* All zero is a good start. The kv_ members matter to language models only, which need kv_blocks. None may be negative. */
typedef struct ingot_options {
  int threads;           /* 0: as many as the machine gives; at most 1024 */
  int64_t kv_blocks;     /* blocks of every cache */
  int64_t kv_block_size; /* tokens in a block, a multiple of 16; 0: 16 */
} ingot_options;

/* The library's version, "0.1.0"; that of the Python package it came with. */
INGOT_API const char* ingot_version(void);

/* The last failure of this thread: a sentence, and one of the codes of docs/errors.md. Empty strings before any. The text
 * is there until the thread's next failing call or its end. */
INGOT_API const char* ingot_last_error(void);
INGOT_API const char* ingot_last_error_code(void);

/* Maps an engine file and checks it whole. ingot_close(NULL) does nothing. Where the system refuses even small allocations, as
 * under a tight limit of address space, ingot_open may end the process: the JSON library frees its values with memory that it
 * allocates. Every other function then fails with the code "memory". */
INGOT_API int ingot_open(const char* path, ingot_engine** engine);
INGOT_API void ingot_close(ingot_engine* engine);

/* What an entry takes and gives, as an array that belongs to the engine (it may be NULL when it has no members). entry may
 * be NULL: "main". The result is the number of members, or -1, such as when the engine has no such entry. */
INGOT_API int ingot_symbols(ingot_engine* engine, const char* entry, const ingot_symbol** symbols);
INGOT_API int ingot_inputs(ingot_engine* engine, const char* entry, const ingot_port** ports);
INGOT_API int ingot_outputs(ingot_engine* engine, const char* entry, const ingot_port** ports);

/* Fills in dtype, rank and shape of every input for one value per symbol, in the order of ingot_symbols and within its
 * bounds; data becomes NULL. The counts must be those of ingot_symbols and ingot_inputs. A failing call does not write to
 * `inputs`. entry may be NULL. */
INGOT_API int ingot_input_shapes(ingot_engine* engine, const char* entry, const int64_t* values, int value_count,
                                 ingot_tensor* inputs, int input_count);

/* Of any int: 0 and "unknown" for one that is no dtype. */
INGOT_API size_t ingot_dtype_size(ingot_dtype dtype);
INGOT_API const char* ingot_dtype_name(ingot_dtype dtype);

/* Fails with the names of the operations when the entry has some without a native kernel. entry and options may be NULL:
 * "main", and all zero. ingot_session_close(NULL) does nothing. */
INGOT_API int ingot_session_create(ingot_engine* engine, const char* entry, const ingot_options* options, ingot_session** session);
INGOT_API void ingot_session_close(ingot_session* session);

/* Runs once: inputs in the order of ingot_inputs, outputs in the order of ingot_outputs, their counts exactly. The inputs are
 * only read, before the outputs are written: an output of an earlier run may be an input. Outputs point into the session
 * until its next run, failing or not, or its end; a run that fails does not write to `outputs`. */
INGOT_API int ingot_run(ingot_session* session, const ingot_tensor* inputs, int input_count, ingot_tensor* outputs, int output_count);

#ifdef __cplusplus
}
#endif

#endif
