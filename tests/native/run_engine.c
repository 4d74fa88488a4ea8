/* Opens an engine, says what it takes and gives, and runs it once on inputs of 0, 1, 2, 0, 1, 2, …
 *   cc run_engine.c -I native/include -L ingot -lingot -o run_engine && ./run_engine net.ingot [SIZE [KV_BLOCKS]]  */
#include <ingot.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 64 };

static int fail(void) {
  fprintf(stderr, "%s: %s\n", ingot_last_error_code(), ingot_last_error());
  return 1;
}

static size_t elements(const ingot_tensor* t) {
  size_t count = 1;
  for (int i = 0; i < t->rank; ++i) count *= (size_t)t->shape[i];
  return count;
}

int main(int argc, char** argv) {
  const int64_t size = argc > 2 ? atoll(argv[2]) : 4;
  ingot_options options = {0, argc > 3 ? atoll(argv[3]) : 0, 0};
  ingot_engine* engine;
  ingot_session* session;
  const ingot_symbol* symbols;
  const ingot_port *in, *out;
  if (argc < 2 || ingot_open(argv[1], &engine)) return fail();
  const int s = ingot_symbols(engine, NULL, &symbols), n = ingot_inputs(engine, NULL, &in), m = ingot_outputs(engine, NULL, &out);
  if (s < 0 || s > MOST || n > MOST || m > MOST) return fail();
  for (int i = 0; i < n; ++i) printf("input %s: %s\n", in[i].name, in[i].spec);
  for (int i = 0; i < m; ++i) printf("output %s: %s\n", out[i].name, out[i].spec);

  int64_t values[MOST];
  ingot_tensor inputs[MOST], outputs[MOST];
  for (int i = 0; i < s; ++i) values[i] = size < symbols[i].min ? symbols[i].min : size > symbols[i].max ? symbols[i].max : size;
  if (ingot_input_shapes(engine, NULL, values, s, inputs, n)) return fail();
  for (int i = 0; i < n; ++i) {
    const size_t count = elements(&inputs[i]);
    inputs[i].data = calloc(count + 1, ingot_dtype_size(inputs[i].dtype));
    for (size_t k = 0; k < count && inputs[i].dtype == INGOT_FLOAT32; ++k) ((float*)inputs[i].data)[k] = (float)(k % 3);
    for (size_t k = 0; k < count && inputs[i].dtype == INGOT_INT32; ++k) ((int32_t*)inputs[i].data)[k] = (int32_t)(k % 3);
  }
  if (ingot_session_create(engine, NULL, &options, &session) || ingot_run(session, inputs, n, outputs, m)) return fail();
  for (int i = 0; i < m; ++i) {
    printf("%s =", out[i].name);
    for (size_t k = 0; k < elements(&outputs[i]) && k < 8 && outputs[i].dtype == INGOT_FLOAT32; ++k) printf(" %g", ((float*)outputs[i].data)[k]);
    printf("\n");
  }
  for (int i = 0; i < n; ++i) free(inputs[i].data);
  ingot_session_close(session);
  ingot_close(engine);
  return 0;
}
