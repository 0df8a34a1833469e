/* Gives each handle of cuBLAS memory of its own to work in, which stays.
 *
 * A handle without such memory allocates some in each call that is captured, as nodes of the
 * graph; a graph that has those can be neither copied nor cut. Libraries that are loaded behind
 * this one find its function before cuBLAS's. Setting the stream takes a handle's memory from it,
 * so it is given there.
 */
#include <dlfcn.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <string>

namespace {

constexpr int failed = 14;  // CUBLAS_STATUS_INTERNAL_ERROR

std::mutex lock;
std::string blas_name, runtime_name;
std::size_t size;
std::map<void *, void *> kept;  // by handle; what a closed one leaves serves the next at its place

template <typename Function>
Function found(const std::string &library, const char *name) {
    void *opened = dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
    return opened ? reinterpret_cast<Function>(dlsym(opened, name)) : nullptr;
}

}  // namespace

extern "C" {

/* Names of the libraries, as the dynamic loader knows them, and how many bytes for each handle. */
void brisk_workspace(const char *blas, const char *runtime, std::size_t bytes) {
    std::lock_guard<std::mutex> held(lock);
    blas_name = blas;
    runtime_name = runtime;
    size = bytes;
}

int cublasSetStream_v2(void *handle, void *stream) {
    std::lock_guard<std::mutex> held(lock);
    auto set = found<int (*)(void *, void *)>(blas_name, "cublasSetStream_v2");
    auto give = found<int (*)(void *, void *, std::size_t)>(blas_name, "cublasSetWorkspace_v2");
    auto allocate = found<int (*)(void **, std::size_t)>(runtime_name, "cudaMalloc");
    if (!set) return failed;
    int result = set(handle, stream);
    if (result || !size || !give || !allocate) return result;
    void *&memory = kept[handle];
    if (!memory && allocate(&memory, size)) {
        kept.erase(handle);
        return 0;
    }
    return give(handle, memory, size);
}

}
