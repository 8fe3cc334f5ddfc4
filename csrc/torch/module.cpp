// collectives._torch: the c10d backend "collectives", and the operators of torch.ops.collectives.
#include <pybind11/pybind11.h>

PYBIND11_MODULE(_torch, m) { m.doc() = "torch adapter of collectives: c10d backend and operators."; }
