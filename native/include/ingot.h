/* ingot's C interface: open an engine file, ask what it takes and gives, run it.
 *
 * The calls in their order. Each can fail, so check each result as the first one here:
 *
 *   ingot_engine* engine;
 *   ingot_session* session;
 *   if (ingot_open("net.ingot", &engine) < 0) puts(ingot_last_error());
 *   ingot_session_create(engine, "main", NULL, &session);
 *   ingot_run(session, inputs, input_count, outputs, output_count);
 *   ingot_session_close(session);
 *   ingot_close(engine);
 *
 * docs/cpp.md is a complete program with all ways to build it; tests/native/run_engine.c is one in C. The library,
 * libingot.so, needs no Python at run time. It comes with the Python package, whose `ingot config` says where the library
 * and this header are:
 *
 *   cc program.c $(ingot config --cflags --libs) -o program
 *
 * Words
 *   engine   a built network: one file with its weights
 *   entry    a program of an engine, by its name, such as "main". Wherever an entry is asked for, NULL means "main"
 *   session  what runs one entry: its working memory, and the state that one run leaves to the next, such as a KV cache
 *   symbol   a size that a run may choose, by name, such as N for a batch
 *   port     an input or output of an entry as declared; a tensor is the memory that a run reads or writes for it
 *   KV cache keys and values of past tokens of a language model, in blocks of equal size
 *
 * Failure
 *   - A function that returns int gives -1 for a failure. For success it gives 0, or the number of an array's members.
 *   - ingot_last_error() and ingot_last_error_code() then say why. They belong to the thread that made the call. They stay
 *     until its next failing call; a call that succeeds leaves them as they are.
 *   - No C++ exception leaves the library.
 *   - Wrong arguments are failures, never crashes, as far as the library can recognise them (see NULL).
 *
 * NULL
 *   - A pointer must not be NULL, unless its function says that it may. A NULL is refused with the argument's name (code
 *     "argument"). An array without members may be NULL.
 *   - A function that hands out a pointer through an argument sets it to NULL when it fails.
 *   - The library cannot recognise other bad pointers. The caller makes sure that every pointer leads to memory that is
 *     there, that text ends with a 0, and that an array has as many members as its count says.
 *
 * Ownership
 *   - What ingot_open and ingot_session_create make is given back once, to ingot_close and ingot_session_close, while no
 *     other thread uses it.
 *   - An engine may be closed before its sessions: a session keeps what it needs.
 *   - Texts, symbols and ports belong to the engine, and are there until ingot_close.
 *   - Outputs of a run belong to the session, and are there until its next run, even a failing one, or ingot_session_close.
 *   - The library keeps no pointer to the caller's memory after a call has returned.
 *
 * Threads
 *   - Any number of threads may use an engine at once.
 *   - A session does one run at a time. A run that begins while another one is under way fails at once (code "busy").
 *   - Sessions of one engine run at the same time, and share its weights: give each thread one.
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
typedef enum ingot_dtype : int { /* as in C, any int may arrive: those that are no dtype are refused */
#else
typedef enum ingot_dtype {
#endif
  INGOT_FLOAT32, INGOT_BFLOAT16, INGOT_FLOAT16, INGOT_FLOAT64, INGOT_INT8, INGOT_INT16, INGOT_INT32,
  INGOT_INT64, INGOT_UINT8, INGOT_UINT16, INGOT_UINT32, INGOT_UINT64, INGOT_BOOL
} ingot_dtype;

/* Opaque: only the functions below look inside. */
typedef struct ingot_engine ingot_engine;
typedef struct ingot_session ingot_session;

/* A size that a run may choose, from min to max, both included. */
typedef struct ingot_symbol {
  const char* name;
  int64_t min, max;
} ingot_symbol;

/* An input or output as declared. spec is its type and shape as text, "float32[T, 256]". In shape, a dimension that is not
 * the same in every run is -1. */
typedef struct ingot_port {
  const char* name;
  const char* spec;
  ingot_dtype dtype;
  int rank;
  int64_t shape[INGOT_MAX_RANK];
} ingot_port;

/* An array in memory: row-major (the last dimension varies fastest) and without gaps. data may have any alignment; it may be
 * NULL where a dimension is 0. A bool is one byte, 0 or 1. */
typedef struct ingot_tensor {
  void* data;
  ingot_dtype dtype;
  int rank;
  int64_t shape[INGOT_MAX_RANK];
} ingot_tensor;

/* How a session runs. All members may be 0, and none may be negative. Only language models use those that begin with kv_;
 * they need kv_blocks. */
typedef struct ingot_options {
  int threads;           /* at most 1024; 0: as many as the process may use */
  int64_t kv_blocks;     /* blocks that the KV cache of each layer has */
  int64_t kv_block_size; /* tokens in a block, a multiple of 16; 0: 16 */
} ingot_options;

/* The version of the library, "0.1.0", which is that of the Python package it came with. */
INGOT_API const char* ingot_version(void);

/* The last failure of this thread: a sentence for people, and one of the codes of docs/errors.md for programs. Both are empty
 * before the first failure. The text is there until the thread's next failing call, or the thread's end. */
INGOT_API const char* ingot_last_error(void);
INGOT_API const char* ingot_last_error_code(void);

/* ingot_open maps an engine file into memory and checks its whole structure, but not the digests of its weights. Leave the file
 * as it is until the engine and its sessions are closed. ingot_close(NULL) does nothing.
 *
 * Out of memory: where the system refuses even small allocations, as under a tight limit of address space, ingot_open may
 * end the process, because the JSON library that it uses needs memory to free its values. Every other function fails with the
 * code "memory" then. */
INGOT_API int ingot_open(const char* path, ingot_engine** engine);
INGOT_API void ingot_close(ingot_engine* engine);

/* What an entry takes and gives: the sizes that a run may choose, the inputs, the outputs. Each function points its last argument
 * at an array that belongs to the engine (it may be NULL when it has no members), and returns the number of members. It returns
 * -1 for a failure, for instance when the engine has no such entry. */
INGOT_API int ingot_symbols(ingot_engine* engine, const char* entry, const ingot_symbol** symbols);
INGOT_API int ingot_inputs(ingot_engine* engine, const char* entry, const ingot_port** ports);
INGOT_API int ingot_outputs(ingot_engine* engine, const char* entry, const ingot_port** ports);

/* The shapes of all inputs for chosen sizes. `values` has one value for each symbol, in the order of ingot_symbols and within its
 * bounds. The function fills in dtype, rank and shape of every member of `inputs` and sets data to NULL, for the caller to set.
 * The counts must be those of ingot_symbols and ingot_inputs. A call that fails does not write to `inputs`. */
INGOT_API int ingot_input_shapes(ingot_engine* engine, const char* entry, const int64_t* values, int value_count,
                                 ingot_tensor* inputs, int input_count);

/* The bytes of an element and the name of a type. Any int may be given: for one that is no dtype, 0 and "unknown". */
INGOT_API size_t ingot_dtype_size(ingot_dtype dtype);
INGOT_API const char* ingot_dtype_name(ingot_dtype dtype);

/* A session of one entry. options may be NULL: all members 0. The call fails when the entry has operations that only Python can
 * run (without a native kernel), and names them. ingot_session_close(NULL) does nothing. */
INGOT_API int ingot_session_create(ingot_engine* engine, const char* entry, const ingot_options* options, ingot_session** session);
INGOT_API void ingot_session_close(ingot_session* session);

/* Runs once.
 *   - inputs: set by the caller, in the order of ingot_inputs, exactly as many. They are only read. An output of an earlier run
 *     of this session may be an input, because inputs are read before outputs are written.
 *   - outputs: filled in by the function, in the order of ingot_outputs, exactly as many. Their data belongs to the session (see
 *     Ownership). A run that fails does not write to `outputs`. */
INGOT_API int ingot_run(ingot_session* session, const ingot_tensor* inputs, int input_count, ingot_tensor* outputs, int output_count);

#ifdef __cplusplus
}
#endif

#endif
