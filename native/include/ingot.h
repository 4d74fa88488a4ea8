/* ingot's C interface: open an engine file, ask for its inputs and outputs, run it.
 *
 *   ingot_engine* engine;  ingot_session* session;  ingot_options options = {0};
 *   if (ingot_open("net.ingot", &engine) || ingot_session_create(engine, "main", &options, &session)) puts(ingot_last_error());
 *
 * Functions that can fail return 0 for success; otherwise ingot_last_error() and ingot_last_error_code() say why, on the
 * calling thread, until its next failing call. An engine may be used from any thread. A session does one run at a time.
 * tests/native/run_engine.c is a complete program.
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

typedef enum ingot_dtype {
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

/* Memory with a type, row-major and without gaps. */
typedef struct ingot_tensor {
  void* data;
  ingot_dtype dtype;
  int rank;
  int64_t shape[INGOT_MAX_RANK];
} ingot_tensor;

/* All zero is a good start. The kv_ members matter to language models only, which need kv_blocks. */
typedef struct ingot_options {
  int threads;           /* 0: as many as the machine gives */
  int64_t kv_blocks;     /* blocks of every cache */
  int64_t kv_block_size; /* tokens in a block, a multiple of 16; 0: 16 */
} ingot_options;

/* The library's version, "0.1.0". */
INGOT_API const char* ingot_version(void);

/* The last failure of this thread: a sentence, and one of the codes of docs/errors.md. Empty strings before any. */
INGOT_API const char* ingot_last_error(void);
INGOT_API const char* ingot_last_error_code(void);

/* Maps an engine file and checks it whole. The engine may be closed before its sessions: they keep what they need. */
INGOT_API int ingot_open(const char* path, ingot_engine** engine);
INGOT_API void ingot_close(ingot_engine* engine);

/* What an entry (NULL: "main") takes and gives. The arrays belong to the engine. The result is the number of members, or
 * -1 when the engine has no such entry. */
INGOT_API int ingot_symbols(ingot_engine* engine, const char* entry, const ingot_symbol** symbols);
INGOT_API int ingot_inputs(ingot_engine* engine, const char* entry, const ingot_port** ports);
INGOT_API int ingot_outputs(ingot_engine* engine, const char* entry, const ingot_port** ports);

/* Fills in dtype, rank and shape of every input for one value per symbol, in the order of ingot_symbols. */
INGOT_API int ingot_input_shapes(ingot_engine* engine, const char* entry, const int64_t* values, ingot_tensor* inputs);

INGOT_API size_t ingot_dtype_size(ingot_dtype dtype);
INGOT_API const char* ingot_dtype_name(ingot_dtype dtype);

/* Fails with the names of the operations when the entry has some without a native kernel. options may be NULL. */
INGOT_API int ingot_session_create(ingot_engine* engine, const char* entry, const ingot_options* options, ingot_session** session);
INGOT_API void ingot_session_close(ingot_session* session);

/* Runs once: inputs in the order of ingot_inputs; outputs, in the order of ingot_outputs, point into the session until its
 * next run or its end. */
INGOT_API int ingot_run(ingot_session* session, const ingot_tensor* inputs, int input_count, ingot_tensor* outputs, int output_count);

#ifdef __cplusplus
}
#endif

#endif
