// The parts of the fake GPU that its collective operations need: what is recorded, and kernels of its own.
#ifndef TOWERNMT_TESTS_GPU_FAKE_GPU_H_
#define TOWERNMT_TESTS_GPU_FAKE_GPU_H_

#include <functional>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"

namespace fake_gpu {

using Kernel = std::function<void(tensorflow::OpKernel*, tensorflow::OpKernelContext*,
                                  tensorflow::AsyncOpKernel::DoneCallback)>;

// Use `kernel` for all operations of a type, which have no kernel on the CPU. `kernel` calls `done` once.
void AddKernel(const std::string& type, Kernel kernel);

// Count one event of a kind. `fields` describe it, without tabs and line breaks; equal events are counted together.
void Record(const char* kind, const std::vector<std::string>& fields, int64_t bytes);

// The card of a device of this library.
std::string CardOf(const tensorflow::DeviceBase& device);

// A tensor's type and shape, as two fields of a record.
std::string TypeOf(const tensorflow::Tensor& tensor);
std::string ShapeOf(const tensorflow::Tensor& tensor);

}  // namespace fake_gpu

#endif  // TOWERNMT_TESTS_GPU_FAKE_GPU_H_
