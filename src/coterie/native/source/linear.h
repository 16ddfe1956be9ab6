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
        for (int first = 0; first < batch.blocks; first += TILE_POSITIONS) {
            const int blocks = std::min(TILE_POSITIONS, batch.blocks - first);
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
        }
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

// found[o][n] = sum_b slopes[b][o] * rows[b][n-th vector from `first`].
template <class Real, int O, int N>
inline void outer_products(
    const Real* const* rows, int count, size_t first, const Real* slopes, size_t row, VecOf<Real> found[O][N]
) {
    VecOf<Real> acc[O][N] = {};
    for (int b = 0; b < count; ++b, slopes += row) {
        VecOf<Real> x[N];
        for (int n = 0; n < N; ++n) x[n] = load(rows[b] + first + n * WIDTH<Real>);
        for (int o = 0; o < O; ++o) {
            const VecOf<Real> slope = spread(slopes[o]);
            for (int n = 0; n < N; ++n) acc[o][n] += slope * x[n];
        }
    }
    for (int o = 0; o < O; ++o)
        for (int n = 0; n < N; ++n) found[o][n] = acc[o][n];
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
        for (int first = 0; first < batch.blocks; first += TILE_POSITIONS) {
            const int blocks = std::min(TILE_POSITIONS, batch.blocks - first);
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
        }
    }
    if (!(layer.mode & TRAINED)) return;
    // Rows of examples: the input's and the slopes'. A width that is no multiple of a vector's is filled up.
    const size_t width = size_t(inputs + W - 1) / W * W;
    const bool first_layer = !layer.row_at.empty();
    const int whole = inputs / W * W;
    layer.rows.resize(size_t(batch.count) * (first_layer ? size_t(W) : width) + size_t(batch.count) * size_t(outputs));
    Real* slopes = layer.rows.data() + layer.rows.size() - size_t(batch.count) * size_t(outputs);
    std::vector<const Real*>&rows = layer.whole_at, &tails = layer.tail_at;
    rows.resize(size_t(batch.count));
    tails.resize(size_t(batch.count));
    for (int block = 0; block < batch.blocks; ++block) {
        const int lanes = batch.lanes(block), b = block * W;
        to_rows<Real>(layer.out->slope(block), outputs, lanes, slopes + size_t(b) * size_t(outputs), size_t(outputs));
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
    Real *weight = params + own.weight, *moving = momenta ? momenta + own.weight : nullptr, *found = gradient + own.weight;
    constexpr int MOST_N = 3;
    in_parts(outputs, TILE_OUTPUTS, [&](int begin, int size) {
        with_constant<TILE_OUTPUTS>(size, [&](auto O) {
            for (int i = 0; i < whole; i += MOST_N * W) {
                with_constant<MOST_N>(std::min(MOST_N, (whole - i) / W), [&](auto N) {
                    Vec product[O()][N()];
                    for (int o = 0; fused && o < O(); ++o)  // the products take longer than the memory
                        for (int n = 0; n < N(); ++n) {
                            const size_t place = size_t(begin + o) * size_t(inputs) + size_t(i + n * W);
                            __builtin_prefetch(weight + place, 1);
                            if (moving) __builtin_prefetch(moving + place, 1);
                        }
                    outer_products<Real, O(), N()>(
                        rows.data(), batch.count, size_t(i), slopes + begin, size_t(outputs), product
                    );
                    for (int o = 0; o < O(); ++o)
                        for (int n = 0; n < N(); ++n) {
                            const size_t place = size_t(begin + o) * size_t(inputs) + size_t(i + n * W);
                            if (fused)
                                fused->sgd(weight + place, moving ? moving + place : nullptr, product[o][n]);
                            else
                                store(found + place, product[o][n]);
                        }
                });
            }
            if (whole < inputs) {
                Vec product[O()][1];
                outer_products<Real, O(), 1>(tails.data(), batch.count, 0, slopes + begin, size_t(outputs), product);
                for (int o = 0; o < O(); ++o) {
                    const size_t place = size_t(begin + o) * size_t(inputs) + size_t(whole);
                    if (fused)
                        fused->sgd(weight + place, moving ? moving + place : nullptr, product[o][0], inputs - whole);
                    else
                        store_some(found + place, product[o][0], inputs - whole);
                }
            }
        });
    });
    if (own.bias < 0) return;
    for (int o = 0; o < outputs; ++o) {
        Vec total{};
        for (int block = 0; block < batch.blocks; ++block) total += layer.out->slope(block)[layer.out->slopes.at(o, 0, 0)];
        gradient[own.bias + o] = sum<Real>(total);
    }
}

}  // namespace COTERIE_TARGET
