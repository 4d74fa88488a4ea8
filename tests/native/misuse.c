/* Calls every function of ingot.h wrongly in every way that it must refuse, and then rightly: none crashes, each error has
 * its code and names the argument.
 *   misuse FOLDER VERSION      FOLDER has chain, attend, normalise, select, plain and wide .ingot of tests/native/engines.py */
#include <ingot.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int faults;

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      ++faults; \
      fprintf(stderr, "line %d: %s; last error: %s: %s\n", __LINE__, #condition, ingot_last_error_code(), ingot_last_error()); \
    } \
  } while (0)

/* The call fails with that code, and its message has that text. */
#define REFUSED(call, code, text) CHECK((call) == -1 && !strcmp(ingot_last_error_code(), code) && strstr(ingot_last_error(), text))

static ingot_engine* opened(const char* folder, const char* name) {
  char path[4096];
  ingot_engine* engine;
  snprintf(path, sizeof path, "%s/%s.ingot", folder, name);
  if (ingot_open(path, &engine)) {
    fprintf(stderr, "%s: %s\n", name, ingot_last_error());
    exit(2);
  }
  return engine;
}

static ingot_session* session_of(ingot_engine* engine) {
  ingot_session* session;
  if (ingot_session_create(engine, NULL, NULL, &session)) {
    fprintf(stderr, "%s\n", ingot_last_error());
    exit(2);
  }
  return session;
}

static ingot_tensor array(void* data, int64_t rows) { return (ingot_tensor){data, INGOT_FLOAT32, 2, {rows, 8}}; }

static void check_constants(const char* version) {
  CHECK(!strcmp(ingot_version(), version));
  CHECK(!strcmp(ingot_last_error(), "") && !strcmp(ingot_last_error_code(), ""));
  CHECK(ingot_dtype_size(INGOT_FLOAT32) == 4 && !strcmp(ingot_dtype_name(INGOT_FLOAT32), "float32"));
  CHECK(ingot_dtype_size(INGOT_BOOL) == 1 && !strcmp(ingot_dtype_name(INGOT_BOOL), "bool"));
  const int none[] = {-1, INGOT_BOOL + 1, INT_MIN, INT_MAX};
  for (int i = 0; i < 4; ++i)
    CHECK(ingot_dtype_size((ingot_dtype)none[i]) == 0 && !strcmp(ingot_dtype_name((ingot_dtype)none[i]), "unknown"));
}

static void check_open(const char* folder) {
  ingot_engine* engine = (ingot_engine*)&faults;
  REFUSED(ingot_open("x.ingot", NULL), "argument", "engine is NULL");
  REFUSED(ingot_open(NULL, NULL), "argument", "engine is NULL");
  REFUSED(ingot_open(NULL, &engine), "argument", "path is NULL");
  CHECK(engine == NULL);
  engine = (ingot_engine*)&faults;
  REFUSED(ingot_open("", &engine), "io", "");
  CHECK(engine == NULL);
  REFUSED(ingot_open("/nowhere/x.ingot", &engine), "io", "/nowhere/x.ingot");
  REFUSED(ingot_open(folder, &engine), "engine_file", "is a directory");
  REFUSED(ingot_open("/dev/null", &engine), "engine_file", "is a device");
  char* endless = malloc(1 << 20);
  memset(endless, 'x', (1 << 20) - 1);
  endless[(1 << 20) - 1] = 0;
  REFUSED(ingot_open(endless, &engine), "io", "");
  free(endless);
  ingot_close(NULL);
  ingot_session_close(NULL);
}

static void check_declarations(const char* folder) {
  ingot_engine* engine = opened(folder, "chain");
  const ingot_symbol* symbols = (const ingot_symbol*)&faults;
  const ingot_port* ports = (const ingot_port*)&faults;
  REFUSED(ingot_symbols(NULL, "main", &symbols), "argument", "engine is NULL");
  CHECK(symbols == NULL);
  REFUSED(ingot_symbols(engine, "main", NULL), "argument", "symbols is NULL");
  REFUSED(ingot_inputs(NULL, NULL, &ports), "argument", "engine is NULL");
  CHECK(ports == NULL);
  REFUSED(ingot_inputs(engine, NULL, NULL), "argument", "ports is NULL");
  REFUSED(ingot_outputs(NULL, NULL, &ports), "argument", "engine is NULL");
  REFUSED(ingot_outputs(engine, NULL, NULL), "argument", "ports is NULL");
  ports = (const ingot_port*)&faults;
  REFUSED(ingot_outputs(engine, "no\x01such \xff", &ports), "argument", "no\\x01such");
  CHECK(ports == NULL);
  REFUSED(ingot_symbols(engine, "", &symbols), "argument", "");
  CHECK(ingot_symbols(engine, NULL, &symbols) == 1 && !strcmp(symbols[0].name, "T") && symbols[0].max == 64);
  CHECK(ingot_inputs(engine, "main", &ports) == 1 && ports[0].rank == 2 && ports[0].shape[0] == -1 && ports[0].shape[1] == 8);

  int64_t values[2] = {3, 3};
  ingot_tensor inputs[2] = {{&faults, INGOT_BOOL, 0, {0}}, {&faults, INGOT_BOOL, 0, {0}}};
  REFUSED(ingot_input_shapes(NULL, NULL, values, 1, inputs, 1), "argument", "engine is NULL");
  REFUSED(ingot_input_shapes(engine, "none", values, 1, inputs, 1), "argument", "none");
  REFUSED(ingot_input_shapes(engine, NULL, NULL, 1, inputs, 1), "argument", "values is NULL");
  REFUSED(ingot_input_shapes(engine, NULL, values, 0, inputs, 1), "argument", "values: 1 are needed");
  REFUSED(ingot_input_shapes(engine, NULL, values, 2, inputs, 1), "argument", "values: 1 are needed");
  REFUSED(ingot_input_shapes(engine, NULL, values, INT_MIN, inputs, 1), "argument", "values: 1 are needed");
  REFUSED(ingot_input_shapes(engine, NULL, values, 1, NULL, 1), "argument", "inputs is NULL");
  REFUSED(ingot_input_shapes(engine, NULL, values, 1, inputs, 2), "argument", "inputs: 1 are needed");
  REFUSED(ingot_input_shapes(engine, NULL, values, 1, inputs, -1), "argument", "inputs: 1 are needed");
  const int64_t wrong[] = {-1, 65, INT64_MIN, INT64_MAX};
  for (int i = 0; i < 4; ++i) REFUSED(ingot_input_shapes(engine, NULL, &wrong[i], 1, inputs, 1), "argument", "values[0]: T=");
  CHECK(inputs[0].data == &faults && inputs[0].dtype == INGOT_BOOL);
  CHECK(ingot_input_shapes(engine, NULL, values, 1, inputs, 1) == 0);
  CHECK(inputs[0].data == NULL && inputs[0].dtype == INGOT_FLOAT32 && inputs[0].shape[0] == 3 && inputs[1].data == &faults);
  ingot_close(engine);
}

/* An entry without symbols and inputs takes NULL for their arrays. */
static void check_empty_arrays(const char* folder) {
  ingot_engine* engine = opened(folder, "plain");
  const ingot_symbol* symbols;
  const ingot_port* ports;
  ingot_tensor output;
  CHECK(ingot_symbols(engine, NULL, &symbols) == 0 && ingot_inputs(engine, NULL, &ports) == 0);
  CHECK(ingot_input_shapes(engine, NULL, NULL, 0, NULL, 0) == 0);
  ingot_session* session = session_of(engine);
  CHECK(ingot_run(session, NULL, 0, &output, 1) == 0);
  CHECK(output.rank == 1 && output.shape[0] == 4 && ((int32_t*)output.data)[3] == 9);
  REFUSED(ingot_run(session, NULL, 0, NULL, 0), "argument", "outputs: 1 are needed");
  ingot_session_close(session);
  ingot_close(engine);
}

static void check_sessions(const char* folder) {
  ingot_engine* engine = opened(folder, "attend");
  ingot_session* session = (ingot_session*)&faults;
  REFUSED(ingot_session_create(engine, NULL, NULL, NULL), "argument", "session is NULL");
  REFUSED(ingot_session_create(NULL, NULL, NULL, &session), "argument", "engine is NULL");
  CHECK(session == NULL);
  REFUSED(ingot_session_create(engine, "none", NULL, &session), "argument", "none");
  REFUSED(ingot_session_create(engine, NULL, NULL, &session), "argument", "kv_blocks");
  const struct {
    ingot_options options;
    const char *code, *text;
  } wrong[] = {
      {{-1, 4, 0}, "argument", "threads: -1"},
      {{1025, 4, 0}, "argument", "threads: 1025"},
      {{INT_MIN, 4, 0}, "argument", "threads: "},
      {{1, -1, 0}, "argument", "kv_blocks: -1"},
      {{1, INT64_MIN, 0}, "argument", "kv_blocks: "},
      {{1, INT64_MAX, 0}, "argument", "kv_blocks: "},
      {{1, 4, -16}, "argument", "kv_block_size: -16"},
      {{1, 4, 17}, "argument", "kv_block_size: 17"},
      {{1, 4, INT64_MAX}, "argument", "kv_block_size: "},
      {{1, INT64_C(1) << 31, 4096}, "memory", "kv_cache"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    session = (ingot_session*)&faults;
    REFUSED(ingot_session_create(engine, NULL, &wrong[i].options, &session), wrong[i].code, wrong[i].text);
    CHECK(session == NULL);
  }
  ingot_close(engine);
  engine = opened(folder, "chain"); /* has no cache, but a negative size is one nowhere */
  const ingot_options negative = {1, -1, 0};
  REFUSED(ingot_session_create(engine, NULL, &negative, &session), "argument", "kv_blocks: -1");
  ingot_close(engine);
  engine = opened(folder, "select");
  REFUSED(ingot_session_create(engine, NULL, NULL, &session), "argument", "pick");
  ingot_close(engine);
}

static void check_runs(const char* folder) {
  ingot_engine* engine = opened(folder, "chain");
  ingot_session* session = session_of(engine);
  ingot_close(engine); /* the session keeps what it needs */
  float memory[16 * 8 + 1];
  for (int i = 0; i < 16 * 8 + 1; ++i) memory[i] = (float)i;
  ingot_tensor input = array(memory, 2), output = {&faults, INGOT_BOOL, 7, {0}};
  REFUSED(ingot_run(NULL, &input, 1, &output, 1), "argument", "session is NULL");
  REFUSED(ingot_run(session, NULL, 1, &output, 1), "argument", "inputs is NULL");
  REFUSED(ingot_run(session, &input, 1, NULL, 1), "argument", "outputs is NULL");
  REFUSED(ingot_run(session, &input, 0, &output, 1), "argument", "inputs: 1 are needed");
  REFUSED(ingot_run(session, &input, 2, &output, 1), "argument", "inputs: 1 are needed");
  REFUSED(ingot_run(session, &input, -1, &output, 1), "argument", "inputs: 1 are needed");
  REFUSED(ingot_run(session, &input, 1, &output, 0), "argument", "outputs: 1 are needed");
  REFUSED(ingot_run(session, &input, 1, &output, INT_MIN), "argument", "outputs: 1 are needed");
  REFUSED(ingot_run(session, &input, INT_MAX, &output, INT_MAX), "argument", "inputs: 1 are needed");

  const struct {
    ingot_tensor input;
    const char* text;
  } wrong[] = {
      {{NULL, INGOT_FLOAT32, 2, {2, 8}}, "data is NULL"},
      {{memory, (ingot_dtype)-1, 2, {2, 8}}, "dtype -1"},
      {{memory, (ingot_dtype)(INGOT_BOOL + 1), 2, {2, 8}}, "dtype 13"},
      {{memory, (ingot_dtype)INT_MAX, 2, {2, 8}}, "dtype 2147483647"},
      {{memory, INGOT_FLOAT32, -1, {2, 8}}, "rank -1"},
      {{memory, INGOT_FLOAT32, INGOT_MAX_RANK + 1, {2, 8}}, "rank 9"},
      {{memory, INGOT_FLOAT32, INT_MAX, {2, 8}}, "rank 2147483647"},
      {{memory, INGOT_FLOAT32, 2, {-2, 8}}, "shape[0] is negative"},
      {{memory, INGOT_FLOAT32, 2, {2, INT64_MIN}}, "shape[1] is negative"},
      {{memory, INGOT_FLOAT32, 2, {INT64_MAX, 8}}, "more bytes than memory"},
      {{memory, INGOT_FLOAT32, 2, {INT64_MAX, INT64_MAX}}, "more bytes than memory"},
      {{NULL, INGOT_FLOAT32, 3, {0, INT64_MAX, INT64_MAX}}, "more bytes than memory"},
      {{memory, INGOT_FLOAT32, 2, {65, 8}}, "T=65"},
      {{memory, INGOT_FLOAT32, 2, {2, 7}}, "float32[2, 7]"},
      {{memory, INGOT_FLOAT32, 1, {16}}, "float32[T, 8] is needed"},
      {{memory, INGOT_FLOAT32, 0, {0}}, "float32[T, 8] is needed"},
      {{memory, INGOT_INT32, 2, {2, 8}}, "float32[T, 8] is needed"},
      {{NULL, INGOT_FLOAT32, 1, {0}}, "float32[T, 8] is needed"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    REFUSED(ingot_run(session, &wrong[i].input, 1, &output, 1), "input", wrong[i].text);
    CHECK(output.data == &faults && output.rank == 7); /* a run that fails does not write */
  }

  CHECK(ingot_run(session, &input, 1, &output, 1) == 0 && output.dtype == INGOT_FLOAT32 && output.rank == 2);
  CHECK(output.shape[0] == 2 && ((float*)output.data)[15] == 75.0f);
  const ingot_tensor none = array(NULL, 0);
  CHECK(ingot_run(session, &none, 1, &output, 1) == 0 && output.rank == 2 && output.shape[0] == 0);

  char* shifted = malloc(2 * 8 * 4 + 1); /* any alignment will do */
  memcpy(shifted + 1, memory, 2 * 8 * 4);
  const ingot_tensor odd = array(shifted + 1, 2);
  CHECK(ingot_run(session, &odd, 1, &output, 1) == 0 && ((float*)output.data)[15] == 75.0f);
  free(shifted);

  CHECK(ingot_run(session, &output, 1, &output, 1) == 0 && ((float*)output.data)[15] == 375.0f); /* its own output */
  const ingot_tensor more = array(memory, 16);
  ingot_tensor both = output;
  CHECK(ingot_run(session, &more, 1, &both, 1) == 0 && ((float*)both.data)[127] == 635.0f);
  ingot_session_close(session);
}

/* An index that only the values show to be wrong. */
static void check_values(const char* folder) {
  ingot_engine* engine = opened(folder, "normalise");
  ingot_session* session = session_of(engine);
  float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  int32_t ids[1] = {4};
  ingot_tensor inputs[2] = {array(x, 1), {ids, INGOT_INT32, 1, {1}}}, outputs[2];
  REFUSED(ingot_run(session, inputs, 2, outputs, 2), "value", "4");
  ids[0] = 3;
  CHECK(ingot_run(session, inputs, 2, outputs, 2) == 0 && ((float*)outputs[1].data)[7] == 31.0f);
  inputs[1].data = NULL;
  REFUSED(ingot_run(session, inputs, 2, outputs, 2), "input", "input 1 ('ids'): data is NULL");
  ingot_session_close(session);
  ingot_close(engine);
}

enum { ROWS = 1 << 15, MOST_TRIES = 1000000 };

typedef struct {
  ingot_session* session;
  ingot_tensor input;
  atomic_int *busy, others;
  atomic_bool* stop;
} Runner;

/* Runs until one run of any thread was refused. */
static void* run_often(void* given) {
  Runner* runner = given;
  for (int i = 0; i < MOST_TRIES && !atomic_load(runner->stop); ++i) {
    ingot_tensor output;
    if (ingot_run(runner->session, &runner->input, 1, &output, 1) == 0) continue;
    if (strcmp(ingot_last_error_code(), "busy")) {
      atomic_fetch_add(&runner->others, 1);
    } else {
      atomic_fetch_add(runner->busy, 1);
      atomic_store(runner->stop, 1);
    }
  }
  return NULL;
}

/* Two threads run one session: the later is refused, and its error is seen by its own thread only. */
static void check_busy(const char* folder) {
  ingot_engine* engine = opened(folder, "wide");
  ingot_session* session = session_of(engine);
  atomic_int busy = 0;
  atomic_bool stop = 0;
  float* memory = calloc(ROWS * 8, sizeof *memory);
  Runner runners[2];
  pthread_t threads[2];
  const char before[] = "session is NULL";
  REFUSED(ingot_run(NULL, NULL, 0, NULL, 0), "argument", before);
  for (int i = 0; i < 2; ++i) {
    runners[i] = (Runner){session, array(memory, ROWS), &busy, 0, &stop};
    CHECK(pthread_create(&threads[i], NULL, run_often, &runners[i]) == 0);
  }
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
  CHECK(busy > 0 && runners[0].others == 0 && runners[1].others == 0);
  CHECK(!strcmp(ingot_last_error(), before));
  ingot_tensor output;
  CHECK(ingot_run(session, &runners[0].input, 1, &output, 1) == 0);
  free(memory);
  ingot_close(engine);
  ingot_session_close(session);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  check_constants(argv[2]);
  check_open(argv[1]);
  check_declarations(argv[1]);
  check_empty_arrays(argv[1]);
  check_sessions(argv[1]);
  check_runs(argv[1]);
  check_values(argv[1]);
  check_busy(argv[1]);
  return faults != 0;
}
