// Layers that treat every number alone: ReLU, tanh, GELU and dropout.
#pragma once

#include "network.h"

namespace COTERIE_TARGET {

template <class Real>
struct Gelu {
    // x * Phi(x), and its derivative.
    static Real value(Real x) { return x * Real(0.5) * (1 + std::erf(x * Real(0.70710678118654752440))); }
    static Real slope(Real x) {
        const Real below = Real(0.5) * (1 + std::erf(x * Real(0.70710678118654752440)));
        return below + x * std::exp(x * x * Real(-0.5)) * Real(0.39894228040143267794);
    }
};

template <class Real>
struct GeluTanh {
    static constexpr Real A = Real(0.79788456080286535588), B = Real(0.044715);
    static Real value(Real x) { return Real(0.5) * x * (1 + std::tanh(A * (x + B * x * x * x))); }
    static Real slope(Real x) {
        const Real t = std::tanh(A * (x + B * x * x * x));
        return Real(0.5) * (1 + t) + Real(0.5) * x * (1 - t * t) * A * (1 + 3 * B * x * x);
    }
};

template <class Real, class Function>
inline VecOf<Real> lane_by_lane(VecOf<Real> x, Function&& function) {
    VecOf<Real> found;
    for (int i = 0; i < WIDTH<Real>; ++i) found[i] = function(x[i]);
    return found;
}

template <class Real>
void Network<Real>::activate(Layer<Real>& layer, const Minibatch<Real>& batch, bool back) {
    typedef VecOf<Real> Vec;
    const Frame &from = layer.in->values, &to = layer.out->values, &in_slopes = layer.in->slopes,
                &out_slopes = layer.out->slopes;
    // y from x forwards; backwards the slope of x from that of y, with x (overwritten where y took its place) and y.
    auto walk = [&](auto&& forwards, auto&& backwards) {
        for (int block = 0; block < batch.blocks; ++block)
            for (int c = 0; c < from.channels; ++c)
                for (int y = 0; y < from.height; ++y) {
                    const Vec* x = layer.in->value(block) + from.at(c, y, 0);
                    Vec* out = layer.out->value(block) + to.at(c, y, 0);
                    if (!back) {
                        for (int i = 0; i < from.width; ++i) out[i] = forwards(x[i]);
                        continue;
                    }
                    const Vec* slope = layer.out->slope(block) + out_slopes.at(c, y, 0);
                    Vec* in_slope = layer.in->slope(block) + in_slopes.at(c, y, 0);
                    for (int i = 0; i < from.width; ++i) in_slope[i] = backwards(x[i], out[i], slope[i]);
                }
    };
    switch (layer.spec.kind) {
        case RELU:
            return walk(
                [](Vec x) { return x <= 0 ? Vec{} : x; },
                [](Vec, Vec y, Vec slope) { return y <= 0 ? Vec{} : slope; }
            );
        case TANH:
            return walk(
                [](Vec x) { return lane_by_lane<Real>(x, [](Real v) { return std::tanh(v); }); },
                [](Vec, Vec y, Vec slope) { return slope * (1 - y * y); }
            );
        case GELU:
            return walk(
                [](Vec x) { return lane_by_lane<Real>(x, Gelu<Real>::value); },
                [](Vec x, Vec, Vec slope) { return slope * lane_by_lane<Real>(x, Gelu<Real>::slope); }
            );
        default:
            return walk(
                [](Vec x) { return lane_by_lane<Real>(x, GeluTanh<Real>::value); },
                [](Vec x, Vec, Vec slope) { return slope * lane_by_lane<Real>(x, GeluTanh<Real>::slope); }
            );
    }
}

// Pixels become channels: only where a normalisation counts channels behind it.
template <class Real>
void Network<Real>::flatten(Layer<Real>& layer, const Minibatch<Real>& batch, bool back) {
    const Frame &image = back ? layer.in->slopes : layer.in->values, &flat = back ? layer.out->slopes : layer.out->values;
    for (int block = 0; block < batch.blocks; ++block) {
        int feature = 0;
        for (int c = 0; c < image.channels; ++c)
            for (int y = 0; y < image.height; ++y)
                for (int x = 0; x < image.width; ++x, ++feature)
                    if (back)
                        layer.in->slope(block)[image.at(c, y, x)] = layer.out->slope(block)[flat.at(feature, 0, 0)];
                    else
                        layer.out->value(block)[flat.at(feature, 0, 0)] = layer.in->value(block)[image.at(c, y, x)];
    }
}

// Draws for every entry, or every channel, of one example after the other, as torch does.
template <class Real>
void Network<Real>::drop(Layer<Real>& layer, const Minibatch<Real>& batch) {
    const Frame &from = layer.in->values, &to = layer.out->values;
    const size_t pixels = size_t(from.height * from.width), entries = size_t(from.features());
    const bool draws = trains(layer) && layer.spec.number > 0;
    if (draws) {
        layer.kept.reserve(size_t(batch.blocks) * entries);
        const float chance = float(layer.spec.number);
        for (int b = 0; b < batch.count; ++b) {
            Vec* kept = layer.kept.get() + size_t(b / WIDTH<Real>) * entries;
            for (size_t i = 0; i < entries; i += layer.spec.whole_channels ? pixels : 1) {
                const Real keep = layer.uniform->next() >= chance ? 1 : 0;
                for (size_t j = 0; j < (layer.spec.whole_channels ? pixels : 1); ++j) kept[i + j][b % WIDTH<Real>] = keep;
            }
        }
    }
    if (!draws && layer.in == layer.out) return;
    const Real rest = Real(1 - layer.spec.number);
    for (int block = 0; block < batch.blocks; ++block) {
        const Vec* kept = layer.kept.get() + size_t(block) * entries;
        for (int c = 0; c < from.channels; ++c)
            for (int y = 0; y < from.height; ++y)
                for (int x = 0; x < from.width; ++x) {
                    const Vec value = layer.in->value(block)[from.at(c, y, x)];
                    layer.out->value(block)[to.at(c, y, x)] = draws ? value * *kept++ / rest : value;
                }
    }
}

template <class Real>
void Network<Real>::drop_back(Layer<Real>& layer, const Minibatch<Real>& batch) {
    const Frame &from = layer.out->slopes, &to = layer.in->slopes;
    const bool draws = trains(layer) && layer.spec.number > 0;
    if (!draws && layer.in == layer.out) return;
    const Real rest = Real(1 - layer.spec.number);
    for (int block = 0; block < batch.blocks; ++block) {
        const Vec* kept = layer.kept.get() + size_t(block) * size_t(from.features());
        for (int c = 0; c < from.channels; ++c)
            for (int y = 0; y < from.height; ++y)
                for (int x = 0; x < from.width; ++x) {
                    const Vec slope = layer.out->slope(block)[from.at(c, y, x)];
                    layer.in->slope(block)[to.at(c, y, x)] = draws ? slope * *kept++ / rest : slope;
                }
    }
}

}  // namespace COTERIE_TARGET
