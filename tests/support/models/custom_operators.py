"""A library of custom operators for ONNX Runtime, compiled here from a few lines of C.

Declared is only what it uses of ONNX Runtime's C interface, whose table of functions and whose
record of an operator only ever grow at their ends.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from support.runtime.compiled import compile_shared

DOMAIN = "test.brisk"

_SOURCE = r"""
#include <stddef.h>
#include <stdint.h>
typedef void *const *Functions;
typedef struct { Functions (*get_api)(uint32_t); const char *(*version)(void); } Base;
typedef struct Operator {
  uint32_t version;
  void *(*create)(const struct Operator *, Functions, const void *);
  const char *(*name)(const struct Operator *);
  const char *(*provider)(const struct Operator *);
  int (*input_type)(const struct Operator *, size_t);
  size_t (*inputs)(const struct Operator *);
  int (*output_type)(const struct Operator *, size_t);
  size_t (*outputs)(const struct Operator *);
  void (*compute)(void *, void *);
  void (*destroy)(void *);
  int (*input_need)(const struct Operator *, size_t);
  int (*output_need)(const struct Operator *, size_t);
  void *later[32];
} Operator;
enum { CREATE_DOMAIN = 26, ADD_OPERATOR = 27, ADD_DOMAIN = 28, DATA = 51, COUNT_DIMS = 61,
       DIMS = 62, SHAPE = 65, INPUT = 90, OUTPUT = 91, RELEASE_SHAPE = 99 };
static Functions api;
#define CALL(index, ...) ((void *(*)())api[index])(__VA_ARGS__)
static void *create(const Operator *self, Functions a, const void *info) { return (void *)self; }
static const char *name(const Operator *self) { return "Scale"; }
static const char *provider(const Operator *self) { return NULL; }
static int type(const Operator *self, size_t index) { return 1; }
static size_t one(const Operator *self) { return 1; }
static void destroy(void *kernel) {}
static void compute(void *kernel, void *context) {
  void *given = NULL, *made = NULL, *shape = NULL;
  float *from = NULL, *to = NULL;
  size_t rank = 0, count = 1;
  int64_t dims[8];
  CALL(INPUT, context, (size_t)0, &given);
  CALL(SHAPE, given, &shape);
  CALL(COUNT_DIMS, shape, &rank);
  CALL(DIMS, shape, dims, rank);
  CALL(RELEASE_SHAPE, shape);
  CALL(OUTPUT, context, (size_t)0, dims, rank, &made);
  CALL(DATA, given, &from);
  CALL(DATA, made, &to);
  for (size_t axis = 0; axis < rank; axis++) count *= dims[axis];
  for (size_t index = 0; index < count; index++) to[index] = FACTOR * from[index];
}
static int required(const Operator *self, size_t index) { return 0; }
static Operator operator = {8, create, name, provider, type, one, type, one, compute, destroy,
                            required, required};
void *RegisterCustomOps(void *options, const Base *base) {
  void *domain = NULL;
  api = base->get_api(1);
  CALL(CREATE_DOMAIN, "test.brisk", &domain);
  CALL(ADD_OPERATOR, domain, &operator);
  return CALL(ADD_DOMAIN, options, domain);
}
"""


def compile_library(path: Path, factor: int = 3) -> Path:
    """A library with ``Scale``: float32 times ``factor``. A new file, in the place of an old one.

    Skips the test where there is no C compiler.
    """
    return compile_shared(path, _SOURCE, f"-DFACTOR={factor}")


def scaled(shape: tuple[str | int, ...] = ("batch", 4)) -> onnx.ModelProto:
    """``y = Scale(x) + 1``, float32."""
    graph = helper.make_graph(
        [
            helper.make_node("Scale", ["x"], ["s"], domain=DOMAIN),
            helper.make_node("Constant", [], ["one"], value_float=1.0),
            helper.make_node("Add", ["s", "one"], ["y"]),
        ],
        "scaled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
