// The engine for one instruction set: compiled once for each, with COTERIE_TARGET and COTERIE_BYTES to match.
#include "dispatch.h"
#include "training.h"

namespace COTERIE_TARGET {

template <class Real>
Functions functions() {
    typedef Worker<Real> Own;
    return Functions{
        [](const ChainSpec* spec) -> void* { return new Own(*spec); },
        [](void* worker) { delete static_cast<Own*>(worker); },
        [](void* worker, const Training* task) { static_cast<Own*>(worker)->train(*task); },
        [](void* worker, const Evaluation* task) { static_cast<Own*>(worker)->evaluate(*task); },
        [](void* worker, const Slope* task) { return static_cast<Own*>(worker)->find_slope(*task); },
        COTERIE_BYTES,
    };
}

Functions single_precision() { return functions<float>(); }
Functions double_precision() { return functions<double>(); }

}  // namespace COTERIE_TARGET
