/* Ops of your own in a shared library, for ingot.op_library (docs/own-ops.md).
 *
 *   #include "ingot_op.h"
 *
 *   static int scale(const ingot_op_call* call) {
 *     const float *x = call->operands[0].data, *by = call->operands[1].data;
 *     float* y = call->results[0].data;
 *     int64_t rows = call->operands[0].shape[0], columns = call->operands[0].shape[1];
 *     for (int64_t i = 0; i < rows * columns; i++) y[i] = x[i] * by[i % columns] * (float)call->numbers[0].real;
 *     return 0;
 *   }
 *   static const ingot_op ops[] = {
 *       {"acme.scale(x: float32[N, C], by: float32[C], factor: float = 1.0) -> float32[N, C]", 1, scale}};
 *   INGOT_API const ingot_op_table* ingot_ops(void) {
 *     static const ingot_op_table table = {INGOT_OP_ABI, 1, ops};
 *     return &table;
 *   }
 *
 *   cc -shared -fPIC scale.c -I $include -o scale.so
 *
 * A library exports one function, ingot_ops. It is loaded where its path is written in Python, never because a file names
 * it, and it runs inside the process: what it breaks is broken.
 *
 * Signature. A name in a namespace; operands, "x: float32[N, C]"; then attributes, "factor: float = 1.0" or "axis: int";
 * then the results, separated by commas. A size is a number or a name: equal names are equal sizes, and a result has only
 * names that an operand has. The caller checks all of it before `run` is called, and allocates the results.
 *
 * run. Tensors are row-major without gaps, and 64 bytes aligned or less. It reads operands, writes every element of the
 * results, keeps no pointer, and returns 0. For a failure it returns another number, with a sentence in `message`. Several
 * threads may call it at once.
 */
#ifndef INGOT_OP_H
#define INGOT_OP_H

#include "ingot.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INGOT_OP_ABI 1

/* The value of an attribute: `integer` of an int, `real` of a float; the other one is 0. */
typedef struct ingot_op_number {
  int64_t integer;
  double real;
} ingot_op_number;

typedef struct ingot_op_call {
  const ingot_tensor* operands;
  ingot_tensor* results;
  const ingot_op_number* numbers; /* of the attributes, in the order of the signature */
  int operand_count, result_count, number_count;
  char* message; /* why it failed, with a 0 at its end */
  size_t message_size;
} ingot_op_call;

typedef struct ingot_op {
  const char* signature;
  int version; /* goes up when attributes or their meaning change */
  int (*run)(const ingot_op_call* call);
} ingot_op;

typedef struct ingot_op_table {
  int abi; /* INGOT_OP_ABI */
  int count;
  const ingot_op* ops;
} ingot_op_table;

INGOT_API const ingot_op_table* ingot_ops(void);

#ifdef __cplusplus
}
#endif
#endif
