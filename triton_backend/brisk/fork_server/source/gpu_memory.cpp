/* Bounds the memory of a device that this process allocates by CUDA's runtime.
 *
 * Libraries that are loaded behind this one find its functions before CUDA's. What is refused here
 * is refused as by a device without free memory.
 */
#include <dlfcn.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <unordered_map>

namespace {

constexpr int out_of_memory = 2;    // cudaErrorMemoryAllocation
constexpr int not_initialised = 3;  // cudaErrorInitializationError

std::mutex lock;
std::string runtime_name;
std::size_t limit, taken, refused;
std::unordered_map<void *, std::size_t> sizes;  // by address

template <typename Function>
Function found(const char *name) {
    void *opened = dlopen(runtime_name.c_str(), RTLD_NOW | RTLD_NOLOAD);
    return opened ? reinterpret_cast<Function>(dlsym(opened, name)) : nullptr;
}

}  // namespace

extern "C" {

/* The runtime's name, as the dynamic loader knows it, and the bytes that may be allocated. */
void brisk_memory_limit(const char *runtime, std::size_t bytes) {
    std::lock_guard<std::mutex> held(lock);
    runtime_name = runtime;
    limit = bytes;
}

/* Count bytes as taken; 0 if that would be too many. */
int brisk_memory_take(std::size_t bytes) {
    std::lock_guard<std::mutex> held(lock);
    if (bytes > limit - taken) {
        ++refused;
        return 0;
    }
    taken += bytes;
    return 1;
}

void brisk_memory_give(std::size_t bytes) {
    std::lock_guard<std::mutex> held(lock);
    taken -= bytes;
}

void brisk_memory_state(std::size_t *bytes, std::size_t *refusals) {
    std::lock_guard<std::mutex> held(lock);
    *bytes = taken;
    *refusals = refused;
}

int cudaMalloc(void **memory, std::size_t bytes) {
    auto allocate = found<int (*)(void **, std::size_t)>("cudaMalloc");
    if (!allocate) return not_initialised;
    if (!brisk_memory_take(bytes)) return out_of_memory;
    int result = allocate(memory, bytes);
    if (result) {
        brisk_memory_give(bytes);
        return result;
    }
    std::lock_guard<std::mutex> held(lock);
    sizes[*memory] = bytes;
    return 0;
}

int cudaFree(void *memory) {
    auto release = found<int (*)(void *)>("cudaFree");
    if (!release) return not_initialised;
    std::size_t bytes = 0;
    {
        // forgotten before it is free: the next to allocate may get its address
        std::lock_guard<std::mutex> held(lock);
        auto known = sizes.find(memory);
        if (known != sizes.end()) {
            bytes = known->second;
            sizes.erase(known);
        }
    }
    int result = release(memory);
    brisk_memory_give(bytes);
    return result;
}

}
