// Calls an XLA FFI handler as XLA's GPU runtime would, with a call frame built by hand: on a CPU, XLA itself never
// calls the handlers of platform CUDA.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "xla/ffi/api/c_api.h"

struct XLA_FFI_Error {
  XLA_FFI_Error_Code code;
  std::string message;
};

namespace {

XLA_FFI_Error* error_create(XLA_FFI_Error_Create_Args* args) { return new XLA_FFI_Error{args->errc, args->message}; }
// What a handler may ask its execution context for. XLA's own type is opaque, and renamed between versions.
struct Context {
  int device;
  void* stream;
  void** state;  // where the program keeps what instantiate left
};

XLA_FFI_Error* state_set(XLA_FFI_State_Set_Args* args) {
  *reinterpret_cast<const Context*>(args->ctx)->state = args->state;
  return nullptr;
}

XLA_FFI_Error* state_get(XLA_FFI_State_Get_Args* args) {
  args->state = *reinterpret_cast<const Context*>(args->ctx)->state;
  return nullptr;
}

XLA_FFI_Error* stream_get(XLA_FFI_Stream_Get_Args* args) {
  args->stream = reinterpret_cast<const Context*>(args->ctx)->stream;
  return nullptr;
}

XLA_FFI_Error* device_ordinal_get(XLA_FFI_DeviceOrdinal_Get_Args* args) {
  args->device_ordinal = reinterpret_cast<const Context*>(args->ctx)->device;
  return nullptr;
}

const XLA_FFI_Api kApi = [] {
  XLA_FFI_Api api = {};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
  api.XLA_FFI_Error_Create = error_create;
  api.XLA_FFI_Stream_Get = stream_get;
  api.XLA_FFI_DeviceOrdinal_Get = device_ordinal_get;
  api.XLA_FFI_State_Set = state_set;
  api.XLA_FFI_State_Get = state_get;
  return api;
}();

// Returns the error's code, 0 for none, and copies its message.
int finish(XLA_FFI_Error* error, char* message, size_t size) {
  if (error == nullptr) return 0;
  std::snprintf(message, size, "%s", error->message.c_str());
  const int code = error->code;
  delete error;
  return code;
}

}  // namespace

extern "C" {

struct HarnessBuffer {
  int dtype;  // XLA_FFI_DataType
  int rank;
  int64_t* dims;
  void* data;
};

// An attribute: a string, or where it is null an int32 or float32.
struct HarnessAttribute {
  const char* name;
  const char* text;
  int is_float;
  int32_t number;
  float real;
};

// The last `result_count` buffers are results. No buffers: a stage that takes none. `state`: of the program.
int harness_call(XLA_FFI_Handler* handler, int stage, int device, void* stream, void** state,
                 const HarnessBuffer* buffers, int buffer_count, int result_count, HarnessAttribute* attributes,
                 int attribute_count, char* message, size_t size) {
  std::vector<XLA_FFI_Buffer> storage(buffer_count);
  std::vector<void*> pointers(buffer_count);
  for (int i = 0; i < buffer_count; ++i) {
    storage[i] = {XLA_FFI_Buffer_STRUCT_SIZE,
                  nullptr,
                  static_cast<XLA_FFI_DataType>(buffers[i].dtype),
                  buffers[i].data,
                  buffers[i].rank,
                  buffers[i].dims};
    pointers[i] = &storage[i];
  }
  std::vector<XLA_FFI_ArgType> arg_types(buffer_count, XLA_FFI_ArgType_BUFFER);
  std::vector<XLA_FFI_RetType> ret_types(result_count, XLA_FFI_RetType_BUFFER);

  std::sort(attributes, attributes + attribute_count,  // as XLA does
            [](const auto& a, const auto& b) { return std::strcmp(a.name, b.name) < 0; });
  std::vector<XLA_FFI_ByteSpan> names(attribute_count), texts(attribute_count);
  std::vector<XLA_FFI_Scalar> scalars(attribute_count);
  std::vector<XLA_FFI_ByteSpan*> name_pointers(attribute_count);
  std::vector<XLA_FFI_AttrType> types(attribute_count);
  std::vector<void*> values(attribute_count);
  for (int i = 0; i < attribute_count; ++i) {
    HarnessAttribute& attribute = attributes[i];
    names[i] = {attribute.name, std::strlen(attribute.name)};
    name_pointers[i] = &names[i];
    if (attribute.text != nullptr) {
      texts[i] = {attribute.text, std::strlen(attribute.text)};
      types[i] = XLA_FFI_AttrType_STRING;
      values[i] = &texts[i];
    } else {
      if (attribute.is_float != 0) {
        scalars[i] = {XLA_FFI_DataType_F32, &attribute.real};
      } else {
        scalars[i] = {XLA_FFI_DataType_S32, &attribute.number};
      }
      types[i] = XLA_FFI_AttrType_SCALAR;
      values[i] = &scalars[i];
    }
  }

  Context context{device, stream, state};
  XLA_FFI_CallFrame frame = {};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &kApi;
  frame.ctx = reinterpret_cast<XLA_FFI_ExecutionContext*>(&context);
  frame.stage = static_cast<XLA_FFI_ExecutionStage>(stage);
  if (buffer_count > 0) {
    const int operand_count = buffer_count - result_count;
    frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, operand_count, arg_types.data(), pointers.data()};
    frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, result_count, ret_types.data(), pointers.data() + operand_count};
  }
  frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr,      attribute_count, types.data(),
                 name_pointers.data(),      values.data()};
  return finish(handler(&frame), message, size);
}

// Registers a type of state, as XLA does: it gives it a number.
void harness_register_type(XLA_FFI_TypeId* id) { id->type_id = 1; }

// What XLA does with a program's state in the end.
void harness_destroy_state(const XLA_FFI_TypeInfo* type, void* state) { type->deleter(state); }

// The traits that the handler declares; negative on failure.
int harness_traits(XLA_FFI_Handler* handler) {
  XLA_FFI_Metadata metadata = {};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  metadata.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension = {};
  extension.extension_base = {XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata, nullptr};
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame = {};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &kApi;
  frame.extension_start = &extension.extension_base;
  char message[256];
  return finish(handler(&frame), message, sizeof(message)) == 0 ? static_cast<int>(metadata.traits) : -1;
}

}  // extern "C"
