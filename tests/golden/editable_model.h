// A checkpoint in memory that tests change and write back.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "quant/format.h"
#include "tensor/tensor_view.h"

namespace nibble::golden {

struct OwnedTensor {
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<std::byte> bytes;

  TensorView view() { return TensorView::contiguous(bytes.data(), dtype, shape); }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(bytes.data());
  }
};

class EditableModel final {
 public:
  static EditableModel read(const Path& dir);
  // Writes config.json and model.safetensors to a fresh directory, which is removed with this
  // object.
  Path write();
  ~EditableModel();
  EditableModel(EditableModel&& other) noexcept = default;
  EditableModel& operator=(EditableModel&&) = delete;

  // The tensor must exist.
  OwnedTensor& at(const std::string& name);
  void erase(const std::string& name);
  void rename(const std::string& from, const std::string& to);

  // Every weight X.weight with wanted(X) is rounded to `format` and stored in it, with X.scale.
  void quantize(const std::function<bool(const std::string& module)>& wanted,
                quant::Format format,
                DType scale_dtype);
  // The inverse: every scaled weight becomes F32.
  void dequantize();

  std::map<std::string, OwnedTensor> tensors;
  json::Object config;

 private:
  EditableModel() = default;
  Path written_;
};

}  // namespace nibble::golden
