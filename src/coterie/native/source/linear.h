// Linear layers. Weights are a matrix [output][input], row after row, and are read where they lie.
#pragma once

#include "network.h"

namespace COTERIE_TARGET {

template <class Real>
void Network<Real>::apply_linear(Layer<Real>& layer, const Minibatch<Real>& batch, const Real* x) {
    const LayerSpec& own = layer.spec;
    const int inputs = layer.in->values.features(), outputs = int(own.outputs);
    const Real *weight = at(own.weight), *bias = at(own.bias);
    if (training_) {
        layer.row_at.clear();
        for (int b = 0; x && b < batch.count; ++b) layer.row_at.push_back(x + batch.row(b) * inputs);
    }
    if (layer.places.empty())
        for (int o = 0; o < outputs; ++o) layer.places.push_back(layer.out->values.at(o, 0, 0));
    in_parts(outputs, TILE_OUTPUTS, [&](int begin, int size) {
        in_parts(batch.blocks, positions_beside(size), [&](int first, int blocks) {
            const Vec* source[TILE_POSITIONS];
            Vec* target[TILE_POSITIONS];
            for (int p = 0; p < blocks; ++p) {
                source[p] = layer.in->value(first + p);
                target[p] = layer.out->value(first + p);
            }
            with_constant<TILE_OUTPUTS>(size, [&](auto O) {
                with_constant<TILE_POSITIONS>(blocks, [&](auto P) {
                    multiply_rows<Real, O(), P()>(
                        source, inputs, weight + size_t(begin) * size_t(inputs), size_t(inputs), 1,
                        bias ? bias + begin : nullptr, target, layer.places.data() + begin
                    );
                });
            });
        });
    });
}

// Turns `count` vectors of examples into rows of examples.
template <class Real>
inline void to_rows(const VecOf<Real>* from, int count, int lanes, Real* rows, size_t length) {
    constexpr int W = WIDTH<Real>;
    for (int first = 0; first < count; first += W) {
        const int some = std::min(W, count - first);
        VecOf<Real> square[W] = {};
        for (int i = 0; i < some; ++i) square[i] = from[first + i];
        transpose<Real>(square);
        for (int lane = 0; lane < lanes; ++lane)
            if (some == W)
                store(rows + size_t(lane) * length + first, square[lane]);
            else
                store_some(rows + size_t(lane) * length + first, square[lane], some);
    }
}

// What becomes of the gradients of a tile of weights: they are kept, or the weights move at once.
template <class Real>
struct Fate {
    Real *gradient, *weights, *momenta;  // momenta null: none
    const Step<Real>* step;              // null: the gradient is kept
};

// sum_b slopes[b][o] * rows[b][n-th vector from `first`] for O rows of weights by N vectors of columns.
//
// Meanwhile the weights and momenta that move are fetched. `Whole`: all lanes; otherwise the first `lanes` alone.
template <class Real, int O, int N, bool Whole>
inline void outer_products(
    const Real* const* rows, int count, size_t first, const Real* slopes, size_t row, const Fate<Real>& fate,
    const size_t (&places)[O], int lanes
) {
    constexpr int W = WIDTH<Real>;
    VecOf<Real> acc[O][N] = {};
    for (int b = 0; b < count; ++b, slopes += row) {
        VecOf<Real> x[N];
        if (fate.step && b < O)
            for (int n = 0; n < N; ++n) {
                __builtin_prefetch(fate.weights + places[b] + n * W, 1);
                if (fate.momenta) __builtin_prefetch(fate.momenta + places[b] + n * W, 1);
            }
        for (int n = 0; n < N; ++n) x[n] = load(rows[b] + first + n * W);
        for (int o = 0; o < O; ++o) {
            const VecOf<Real> slope = spread(slopes[o]);
            for (int n = 0; n < N; ++n) acc[o][n] += slope * x[n];
        }
    }
    auto finish = [&](auto&& work) {
        for (int o = 0; o < O; ++o)
            for (int n = 0; n < N; ++n) work(places[o] + size_t(n * W), acc[o][n]);
    };
    if constexpr (Whole) {
        if (!fate.step)
            finish([&](size_t place, VecOf<Real> found) { store(fate.gradient + place, found); });
        else if (fate.momenta)
            finish([&](size_t place, VecOf<Real> found) {
                fate.step->sgd(fate.weights + place, fate.momenta + place, found);
            });
        else
            finish([&](size_t place, VecOf<Real> found) { fate.step->sgd(fate.weights + place, nullptr, found); });
    } else
        finish([&](size_t place, VecOf<Real> found) {
            if (fate.step)
                fate.step->sgd(fate.weights + place, fate.momenta ? fate.momenta + place : nullptr, found, lanes);
            else
                store_some(fate.gradient + place, found, lanes);
        });
}

template <class Real>
void Network<Real>::linear_back(Layer<Real>& layer, const Minibatch<Real>& batch, bool below) {
    constexpr int W = WIDTH<Real>;
    const LayerSpec& own = layer.spec;
    const Frame &to = layer.in->slopes, &values = layer.in->values;
    const int inputs = values.features(), outputs = int(own.outputs);
    if (below) {
        if (layer.slope_at.empty())
            for (int c = 0; c < to.channels; ++c)
                for (int y = 0; y < to.height; ++y)
                    for (int x = 0; x < to.width; ++x) layer.slope_at.push_back(to.at(c, y, x));
        in_parts(batch.blocks, positions_beside(inputs), [&](int first, int blocks) {
            const Vec* source[TILE_POSITIONS];
            Vec* target[TILE_POSITIONS];
            for (int p = 0; p < blocks; ++p) {
                source[p] = layer.out->slope(first + p);
                target[p] = layer.in->slope(first + p);
            }
            in_parts(inputs, TILE_OUTPUTS, [&](int begin, int size) {
                with_constant<TILE_OUTPUTS>(size, [&](auto O) {
                    with_constant<TILE_POSITIONS>(blocks, [&](auto P) {
                        multiply_rows<Real, O(), P()>(
                            source, outputs, at(own.weight) + begin, 1, size_t(inputs), nullptr, target,
                            layer.slope_at.data() + begin
                        );
                    });
                });
            });
        });
    }
    if (!(layer.mode & TRAINED)) return;
    // Rows of examples: the input's and the slopes'. A width that is no multiple of a vector's is filled up, and made
    // odd: rows that are a power of two apart would all want the same lines of the cache.
    auto odd = [](int count) { return size_t((count + W - 1) / W | 1) * W; };
    const size_t width = odd(inputs), length = odd(outputs);
    const bool first_layer = !layer.row_at.empty();
    const int whole = inputs / W * W;
    layer.rows.resize(size_t(batch.count) * ((first_layer ? size_t(W) : width) + length));
    Real* slopes = layer.rows.data() + layer.rows.size() - size_t(batch.count) * length;
    std::vector<const Real*>&rows = layer.whole_at, &tails = layer.tail_at;
    rows.resize(size_t(batch.count));
    tails.resize(size_t(batch.count));
    for (int block = 0; block < batch.blocks; ++block) {
        const int lanes = batch.lanes(block), b = block * W;
        to_rows<Real>(layer.out->slope(block), outputs, lanes, slopes + size_t(b) * length, length);
        if (!first_layer) to_rows<Real>(layer.in->value(block), inputs, lanes, layer.rows.data() + size_t(b) * width, width);
    }
    for (int b = 0; b < batch.count; ++b) {
        if (first_layer) {
            Real* tail = layer.rows.data() + b * W;
            std::fill(tail, tail + W, Real(0));
            std::copy(layer.row_at[size_t(b)] + whole, layer.row_at[size_t(b)] + inputs, tail);
            rows[size_t(b)] = layer.row_at[size_t(b)];
            tails[size_t(b)] = tail;
        } else {
            rows[size_t(b)] = layer.rows.data() + size_t(b) * width;
            tails[size_t(b)] = rows[size_t(b)] + whole;
        }
    }
    const Fate<Real> fate{
        gradient + own.weight, params + own.weight, momenta ? momenta + own.weight : nullptr, fused
    };
    // Columns outside, so that the examples' part of them stays in the nearest cache for all outputs.
    auto each_tile = [&](size_t column, auto&& work) {
        in_parts(outputs, TILE_OUTPUTS, [&](int begin, int size) {
            with_constant<TILE_OUTPUTS>(size, [&](auto O) {
                size_t places[O()];
                for (int o = 0; o < O(); ++o) places[o] = size_t(begin + o) * size_t(inputs) + column;
                work(slopes + begin, O, places);
            });
        });
    };
    constexpr int MOST_N = 3;
    for (int i = 0; i < whole; i += MOST_N * W)
        with_constant<MOST_N>(std::min(MOST_N, (whole - i) / W), [&](auto N) {
            each_tile(size_t(i), [&](const Real* from, auto O, const auto& places) {
                outer_products<Real, O(), N(), true>(
                    rows.data(), batch.count, size_t(i), from, length, fate, places, W
                );
            });
        });
    if (whole < inputs)
        each_tile(size_t(whole), [&](const Real* from, auto O, const auto& places) {
            outer_products<Real, O(), 1, false>(
                tails.data(), batch.count, 0, from, length, fate, places, inputs - whole
            );
        });
    if (own.bias < 0) return;
    for (int o = 0; o < outputs; ++o) {
        Vec total{};
        for (int block = 0; block < batch.blocks; ++block) total += layer.out->slope(block)[layer.out->slopes.at(o, 0, 0)];
        gradient[own.bias + o] = sum<Real>(total);
    }
}

}  // namespace COTERIE_TARGET
