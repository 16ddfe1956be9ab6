// The plain C interface: picks the best instruction set of this machine once, when the library is loaded.
#include "dispatch.h"

#include <cstring>
#include <exception>

#include "draws.h"

namespace baseline {
Functions single_precision();
Functions double_precision();
}  // namespace baseline
#ifdef COTERIE_X86
namespace avx2 {
Functions single_precision();
Functions double_precision();
}  // namespace avx2
namespace avx512 {
Functions single_precision();
Functions double_precision();
}  // namespace avx512
#endif

namespace {

struct Target {
    const char* name;
    Functions single, twofold;
};

Target baseline_target() { return {"baseline", baseline::single_precision(), baseline::double_precision()}; }

Target best(const char* wanted) {
#ifdef COTERIE_X86
    const bool any = !wanted || !*wanted;
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
    const bool medium = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (wide && (any || !std::strcmp(wanted, "avx512")))
        return {"avx512", avx512::single_precision(), avx512::double_precision()};
    if (medium && (any || !std::strcmp(wanted, "avx2"))) return {"avx2", avx2::single_precision(), avx2::double_precision()};
#endif
    (void)wanted;
    return baseline_target();
}

struct Handle {
    Functions functions;
    void* worker;
};

// Calls `work` and returns 0, or 2 if it ran out of memory or failed in another way.
template <class Work>
int guarded(Work&& work) noexcept {
    try {
        return work();
    } catch (const std::exception&) {
        return 2;
    }
}

}  // namespace

#define COTERIE_PUBLIC __attribute__((visibility("default")))

extern "C" {

// The name of the instruction set that would be used: the best one, or the one asked for if the machine has it.
COTERIE_PUBLIC const char* coterie_target(const char* wanted) { return best(wanted).name; }

COTERIE_PUBLIC void* coterie_worker(const ChainSpec* spec, int64_t bytes, const char* wanted) {
    Handle* handle = nullptr;
    guarded([&] {
        const Target target = best(wanted);
        const Functions functions = bytes == 8 ? target.twofold : target.single;
        handle = new Handle{functions, functions.make(spec)};
        return 0;
    });
    return handle;
}

COTERIE_PUBLIC void coterie_worker_free(void* handle) {
    if (!handle) return;
    static_cast<Handle*>(handle)->functions.remove(static_cast<Handle*>(handle)->worker);
    delete static_cast<Handle*>(handle);
}

COTERIE_PUBLIC int coterie_train(void* handle, const Training* task) {
    const Handle& own = *static_cast<Handle*>(handle);
    return guarded([&] { return own.functions.train(own.worker, task), 0; });
}

COTERIE_PUBLIC int coterie_evaluate(void* handle, const Evaluation* task) {
    const Handle& own = *static_cast<Handle*>(handle);
    return guarded([&] { return own.functions.evaluate(own.worker, task), 0; });
}

// 1 where the minibatch is too small for a batch normalisation.
COTERIE_PUBLIC int coterie_slope(void* handle, const Slope* task) {
    const Handle& own = *static_cast<Handle*>(handle);
    return guarded([&] { return own.functions.find_slope(own.worker, task) ? 0 : 1; });
}

COTERIE_PUBLIC void coterie_permutation(uint64_t seed, int64_t count, int64_t* order) { coterie::Pcg64(seed).permute(order, count); }
}
