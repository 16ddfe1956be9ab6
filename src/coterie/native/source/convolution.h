// Convolution: every output pixel is a product of packed kernels with the pixels under them.
#pragma once

#include "network.h"

namespace COTERIE_TARGET {

template <class Real>
void Network<Real>::prepare_convolution(Layer<Real>& layer) {
    const LayerSpec& own = layer.spec;
    const Frame &from = layer.in->values, &to = layer.out->slopes;
    const int height = int(own.kernel_height), width = int(own.kernel_width), channels = from.channels;
    for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x)
            for (int c = 0; c < channels; ++c)
                layer.offsets.push_back(int32_t(c * from.plane() + size_t(y) * from.row() + size_t(x)));
    layer.packed.resize(size_t(own.outputs) * layer.offsets.size());
    Frame& spaced = layer.spaced_frame;
    spaced = to;
    if (own.stride_height > 1 || own.stride_width > 1) {
        // Zeros between the slopes, and margins wide enough for every input pixel.
        spaced = Frame{to.channels, from.height, from.width, height + int(own.pad_height), width + int(own.pad_width)};
        if (training_) layer.spaced.reserve(spaced.size());
    }
    for (int o = 0; o < own.outputs; ++o)
        for (int y = 0; y < height; ++y)
            for (int x = 0; x < width; ++x)
                layer.back_offsets.push_back(int32_t(
                    int64_t(o) * int64_t(spaced.plane()) +
                    (own.pad_height - y + spaced.margin_height) * int64_t(spaced.row()) + own.pad_width - x +
                    spaced.margin_width
                ));
}

template <class Real>
void Network<Real>::convolve(Layer<Real>& layer, const Minibatch<Real>& batch) {
    const LayerSpec& own = layer.spec;
    const Frame &from = layer.in->values, &to = layer.out->values;
    const int count = int(layer.offsets.size()), outputs = int(own.outputs), pixels = to.height * to.width;
    const Real *weight = at(own.weight), *bias = at(own.bias);
    std::vector<size_t> planes(static_cast<size_t>(outputs));
    for (int o = 0; o < outputs; ++o) planes[size_t(o)] = to.at(o, 0, 0) - to.at(0, 0, 0);
    in_parts(outputs, TILE_OUTPUTS, [&](int begin, int size) {
        Real* packed = layer.packed.data() + size_t(begin) * size_t(count);
        for (int k = 0; k < count; ++k)
            for (int o = 0; o < size; ++o) packed[k * size + o] = weight[size_t(begin + o) * size_t(count) + size_t(k)];
    });
    const int total = batch.blocks * pixels;
    for (int first = 0; first < total; first += TILE_POSITIONS) {
        const int positions = std::min(TILE_POSITIONS, total - first);
        const Vec* source[TILE_POSITIONS];
        Vec* target[TILE_POSITIONS];
        for (int p = 0; p < positions; ++p) {
            const int block = (first + p) / pixels, y = (first + p) % pixels / to.width, x = (first + p) % to.width;
            source[p] = layer.in->value(block) + size_t(y * own.stride_height) * from.row() + size_t(x * own.stride_width);
            target[p] = layer.out->value(block) + to.at(0, y, x);
        }
        in_parts(outputs, TILE_OUTPUTS, [&](int begin, int size) {
            const Real* packed = layer.packed.data() + size_t(begin) * size_t(count);
            with_constant<TILE_OUTPUTS>(size, [&](auto O) {
                with_constant<TILE_POSITIONS>(positions, [&](auto P) {
                    multiply_gathered<Real, O(), P()>(
                        source, layer.offsets.data(), count, packed, size_t(size), bias ? bias + begin : nullptr, target,
                        planes.data() + begin
                    );
                });
            });
        });
    }
}

// The slopes of a stride wider than one, spread out so that a pixel finds them at its own distance.
template <class Real>
inline const VecOf<Real>* spread_out(Layer<Real>& layer, int block) {
    const LayerSpec& own = layer.spec;
    if (own.stride_height == 1 && own.stride_width == 1) return layer.out->slope(block);
    const Frame &from = layer.out->slopes, &to = layer.spaced_frame;
    for (int c = 0; c < from.channels; ++c)
        for (int y = 0; y < from.height; ++y)
            for (int x = 0; x < from.width; ++x)
                layer.spaced.get()[to.at(c, int(y * own.stride_height), int(x * own.stride_width))] =
                    layer.out->slope(block)[from.at(c, y, x)];
    return layer.spaced.get();
}

template <class Real>
void Network<Real>::convolve_back(Layer<Real>& layer, const Minibatch<Real>& batch, bool below) {
    const LayerSpec& own = layer.spec;
    const Frame &values = layer.in->values, &slopes = layer.out->slopes, &to = layer.in->slopes;
    const int outputs = int(own.outputs), count = int(layer.offsets.size());
    if (below) {
        const int channels = to.channels, pixels = to.height * to.width, taps = int(layer.back_offsets.size());
        std::vector<size_t> planes(static_cast<size_t>(channels));
        for (int c = 0; c < channels; ++c) planes[size_t(c)] = size_t(c) * to.plane();
        for (int block = 0; block < batch.blocks; ++block) {
            const Vec* from = spread_out(layer, block);
            for (int first = 0; first < pixels; first += TILE_POSITIONS) {
                const int positions = std::min(TILE_POSITIONS, pixels - first);
                const Vec* source[TILE_POSITIONS];
                Vec* target[TILE_POSITIONS];
                for (int p = 0; p < positions; ++p) {
                    const int y = (first + p) / to.width, x = (first + p) % to.width;
                    source[p] = from + size_t(y) * layer.spaced_frame.row() + size_t(x);
                    target[p] = layer.in->slope(block) + to.at(0, y, x);
                }
                in_parts(channels, TILE_OUTPUTS, [&](int begin, int size) {
                    with_constant<TILE_OUTPUTS>(size, [&](auto O) {
                        with_constant<TILE_POSITIONS>(positions, [&](auto P) {
                            multiply_gathered<Real, O(), P()>(
                                source, layer.back_offsets.data(), taps, at(own.weight) + begin, size_t(channels),
                                nullptr, target, planes.data() + begin
                            );
                        });
                    });
                });
            }
        }
    }
    if (!(layer.mode & TRAINED)) return;
    constexpr int MOST_O = REGISTERS == 32 ? 4 : 2, MOST_K = REGISTERS == 32 ? 6 : 4;
    const Walk walk{
        batch.blocks, slopes.height, slopes.width, slopes.size(), slopes.row(), values.size(),
        size_t(own.stride_height) * values.row(), size_t(own.stride_width)
    };
    in_parts(outputs, MOST_O, [&](int first_output, int some_outputs) {
        const Vec* slope[MOST_O];
        for (int o = 0; o < some_outputs; ++o) slope[o] = layer.out->slope(0) + slopes.at(first_output + o, 0, 0);
        in_parts(count, MOST_K, [&](int first, int some) {
            const Vec* from[MOST_K];
            for (int k = 0; k < some; ++k) from[k] = layer.in->value(0) + layer.offsets[size_t(first + k)];
            Real* found = gradient + own.weight + size_t(first_output) * size_t(count) + size_t(first);
            with_constant<MOST_O>(some_outputs, [&](auto O) {
                with_constant<MOST_K>(some, [&](auto K) {
                    correlate<Real, O(), K()>(slope, from, walk, found, size_t(count));
                });
            });
        });
    });
    if (own.bias < 0) return;
    for (int o = 0; o < outputs; ++o) {
        Vec total{};
        for (int block = 0; block < batch.blocks; ++block)
            for (int y = 0; y < slopes.height; ++y)
                for (int x = 0; x < slopes.width; ++x) total += layer.out->slope(block)[slopes.at(o, y, x)];
        gradient[own.bias + o] = sum<Real>(total);
    }
}

}  // namespace COTERIE_TARGET
