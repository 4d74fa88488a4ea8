/* Makes a session and runs it while the n-th allocation fails, for n = 1, 2, … until nothing fails any more: each failure is
 * the code "memory", and what was made before it goes on working.
 *   starve net.ingot THREADS */
#include <errno.h>
#include <ingot.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Takes the C library's place for the whole process, C++'s operator new included. */
extern void* __libc_malloc(size_t size);
extern void* __libc_calloc(size_t count, size_t size);
extern void* __libc_realloc(void* memory, size_t size);

static _Atomic long left = -1; /* allocations until one fails; negative: none fails */

static int starved(void) {
  long now = atomic_load(&left);
  while (now >= 0 && !atomic_compare_exchange_weak(&left, &now, now - 1)) {
  }
  if (now == 0) errno = ENOMEM;
  return now == 0;
}

void* malloc(size_t size) { return starved() ? NULL : __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return starved() ? NULL : __libc_calloc(count, size); }
void* realloc(void* memory, size_t size) { return starved() ? NULL : __libc_realloc(memory, size); }

typedef struct {
  ingot_options options;
  ingot_engine* engine;
  ingot_session* session;
  ingot_tensor input, output;
} State;

static int create(State* s) { return ingot_session_create(s->engine, NULL, &s->options, &s->session); }
static int run(State* s) { return ingot_run(s->session, &s->input, 1, &s->output, 1); }
static int ports(State* s) {
  const ingot_port* found;
  return ingot_inputs(s->engine, NULL, &found) == 1 ? 0 : -1;
}

/* How many allocations a call makes, when all that fail have failed well; -1 after one that did not. */
static long starve(const char* name, int (*call)(State*), State* s) {
  for (long n = 0;; ++n) {
    atomic_store(&left, n);
    const int result = call(s);
    const int unused = atomic_exchange(&left, -1) >= 0;
    if (result == 0 && unused) return n;
    if (result == 0) continue; /* an allocation that can be done without */
    if (strcmp(ingot_last_error_code(), "memory")) {
      fprintf(stderr, "%s without allocation %ld: %s: %s\n", name, n, ingot_last_error_code(), ingot_last_error());
      return -1;
    }
  }
}

int main(int argc, char** argv) {
  static float memory[8 * 8];
  if (argc != 3) return 2;
  State s = {{atoi(argv[2]), 0, 0}, NULL, NULL, {memory, INGOT_FLOAT32, 2, {8, 8}}, {0}};
  for (int i = 0; i < 64; ++i) memory[i] = (float)i;
  if (ingot_open(argv[1], &s.engine)) return 1;
  const long declaring = starve("ingot_inputs", ports, &s);
  if (declaring < 0) return 1;
  const long creating = starve("ingot_session_create", create, &s);
  if (creating < 0) return 1;
  const long running = starve("ingot_run", run, &s);
  if (running < 0) return 1;
  if (((float*)s.output.data)[63] != 315.0f) return 1;
  ingot_session_close(s.session);
  ingot_close(s.engine);
  printf("%ld %ld %ld\n", declaring, creating, running);
  return 0;
}
