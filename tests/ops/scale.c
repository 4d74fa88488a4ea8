/* Two ops of one's own, as docs/own-ops.md has them: one that works, one that always fails. */
#include <stdio.h>

#include "ingot_op.h"

static int scale(const ingot_op_call* call) {
  const float *x = call->operands[0].data, *by = call->operands[1].data;
  float* y = call->results[0].data;
  const int64_t rows = call->operands[0].shape[0], columns = call->operands[0].shape[1];
  for (int64_t i = 0; i < rows * columns; i++) y[i] = x[i] * by[i % columns] * (float)call->numbers[0].real;
  int64_t* counted = call->results[1].data;
  counted[0] = rows + call->numbers[1].integer;
  return 0;
}

static int failing(const ingot_op_call* call) {
  snprintf(call->message, call->message_size, "%lld rows are too many", (long long)call->operands[0].shape[0]);
  return 1;
}

static const ingot_op ops[] = {
    {"acme.scale(x: float32[N, C], by: float32[C], factor: float = 2.0, more: int = 0) -> float32[N, C], int64[1]", 3, scale},
    {"acme.failing(x: float32[N]) -> float32[N]", 1, failing},
};

INGOT_API const ingot_op_table* ingot_ops(void) {
  static const ingot_op_table table = {INGOT_OP_ABI, 2, ops};
  return &table;
}
