// Losses of the outputs and their slopes: cross entropy, squared differences, cross entropy of several labels.
#pragma once

#include "network.h"

namespace COTERIE_TARGET {

// The classes of one block of examples; lanes without an example have none.
template <class Real>
inline IntOf<Real> classes_of(const Minibatch<Real>& batch, const int64_t* classes, int block) {
    IntOf<Real> found = IntOf<Real>{} - 1;
    for (int i = 0; i < batch.lanes(block); ++i) found[i] = classes[batch.row(block * WIDTH<Real> + i)];
    return found;
}

template <class Real>
inline VecOf<Real> targets_of(const Minibatch<Real>& batch, const Real* targets, int block, int column, int columns) {
    VecOf<Real> found{};
    for (int i = 0; i < batch.lanes(block); ++i)
        found[i] = targets[batch.row(block * WIDTH<Real> + i) * columns + column];
    return found;
}

// The mean loss over the minibatch; `each` takes the loss of every example, and `slopes` asks for those of the mean.
template <class Real>
double Network<Real>::loss(const Minibatch<Real>& batch, const Examples& examples, Real* each, bool slopes) {
    const int outputs = int(spec_.outputs);
    const Real share = Real(1) / Real(batch.count);
    double total = 0;
    for (int block = 0; block < batch.blocks; ++block) {
        const Vec* out = output().value(block);
        Vec* slope = slopes ? output().slope(block) : nullptr;
        const Vec part = batch.mask(block) * share;
        Vec found{};
        if (spec_.loss == CROSS_ENTROPY) {
            const IntOf<Real> classes = classes_of(batch, examples.classes, block);
            Vec most = out[0], sums{}, own{};
            for (int c = 1; c < outputs; ++c) most = larger<Real>(out[c], most);
            for (int c = 0; c < outputs; ++c) {
                const Vec chance = exp_below(out[c] - most);
                sums += chance;
                own = classes == c ? out[c] : own;
                if (slope) slope[c] = chance;
            }
            found = log_above(sums) + most - own;
            if (slope) {
                const Vec scale = part / sums;
                for (int c = 0; c < outputs; ++c) {
                    const Vec hit = classes == c ? part : Vec{};
                    slope[c] = batch.lanes(block) < WIDTH<Real> ? (slope[c] * scale - hit) * batch.mask(block)
                                                                : slope[c] * scale - hit;
                }
            }
        } else {
            for (int c = 0; c < outputs; ++c) {
                const Vec truth = targets_of(batch, static_cast<const Real*>(examples.targets), block, c, outputs);
                Vec slope_here;
                if (spec_.loss == SQUARED) {
                    found += (out[c] - truth) * (out[c] - truth);
                    slope_here = 2 * (out[c] - truth);
                } else
                    for (int i = 0; i < WIDTH<Real>; ++i) {
                        const Real x = out[c][i], small = std::exp(-std::abs(x));
                        found[i] += std::max(x, Real(0)) - x * truth[i] + std::log1p(small);
                        slope_here[i] = (x > 0 ? 1 / (1 + small) : small / (1 + small)) - truth[i];
                    }
                if (slope) slope[c] = slope_here * part / Real(outputs);
            }
            found /= Real(outputs);
        }
        for (int i = 0; i < batch.lanes(block); ++i) {
            total += found[i];
            if (each) each[block * WIDTH<Real> + i] = found[i];
        }
    }
    return total / batch.count;
}

}  // namespace COTERIE_TARGET
