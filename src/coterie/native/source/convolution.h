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
    for (int y = 0; y < height; ++y)
        for (int o = 0; o < own.outputs; ++o)
            for (int x = 0; x < width; ++x)
                layer.back_offsets.push_back(int32_t(
                    int64_t(o) * int64_t(spaced.plane()) +
                    (own.pad_height - y + spaced.margin_height) * int64_t(spaced.row()) + own.pad_width - x +
                    spaced.margin_width
                ));
}

// A range of rows or columns, of a kernel or of an image.
struct Range {
    int begin, end;
};

// The rows of a kernel that touch an image of this height at the output rows from `first` to `last`.
inline Range kernel_rows(int64_t first, int64_t last, int64_t stride, int64_t pad, int64_t kernel, int64_t height) {
    return {int(std::max<int64_t>(0, pad - last * stride)), int(std::min(kernel, height + pad - first * stride))};
}

// The outputs at which a row of a kernel touches the image: beyond them it sees zeros alone.
inline Range touched(int64_t tap, int64_t stride, int64_t pad, int64_t size, int outputs) {
    const int64_t begin = std::max<int64_t>(0, pad - tap + stride - 1) / stride, end = (size - 1 + pad - tap) / stride + 1;
    return {int(begin), int(std::min<int64_t>(outputs, size + pad - tap > 0 ? end : 0))};
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
    const int tile = positions_beside(outputs);
    for (int first = 0; first < total; first += tile) {
        const int positions = std::min(tile, total - first);
        const Vec* source[TILE_POSITIONS];
        Vec* target[TILE_POSITIONS];
        Range rows{0, int(own.kernel_height)};
        if (const int last = first + positions - 1; first / pixels == last / pixels)
            rows = kernel_rows(
                first % pixels / to.width, last % pixels / to.width, own.stride_height, own.pad_height, own.kernel_height,
                from.height
            );
        const int skipped = rows.begin * count / int(own.kernel_height);
        const int taps = (rows.end - rows.begin) * count / int(own.kernel_height);
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
                        source, layer.offsets.data() + skipped, taps, packed + skipped * size, size_t(size),
                        bias ? bias + begin : nullptr, target, planes.data() + begin
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
        const int tile = positions_beside(channels), height = int(own.kernel_height), each = taps / height;
        const int run = int(own.kernel_width) * channels;
        // Kernels by their rows: [row][output][column][input].
        for (int y = 0; y < height; ++y)
            for (int o = 0; o < outputs; ++o)
                std::copy_n(
                    at(own.weight) + size_t((o * height + y) * run), run,
                    layer.packed.data() + size_t((y * outputs + o) * run)
                );
        for (int block = 0; block < batch.blocks; ++block) {
            const Vec* from = spread_out(layer, block);
            for (int first = 0; first < pixels; first += tile) {
                const int positions = std::min(tile, pixels - first);
                const Vec* source[TILE_POSITIONS];
                Vec* target[TILE_POSITIONS];
                Range rows{0, height};  // of the kernel: those that reach a slope
                if (own.stride_height == 1) {
                    const int top = first / to.width, bottom = (first + positions - 1) / to.width, pad = int(own.pad_height);
                    rows = {std::max(0, top + pad - slopes.height + 1), std::min(height, bottom + pad + 1)};
                }
                for (int p = 0; p < positions; ++p) {
                    const int y = (first + p) / to.width, x = (first + p) % to.width;
                    source[p] = from + size_t(y) * layer.spaced_frame.row() + size_t(x);
                    target[p] = layer.in->slope(block) + to.at(0, y, x);
                }
                in_parts(channels, TILE_OUTPUTS, [&](int begin, int size) {
                    with_constant<TILE_OUTPUTS>(size, [&](auto O) {
                        with_constant<TILE_POSITIONS>(positions, [&](auto P) {
                            multiply_gathered<Real, O(), P()>(
                                source, layer.back_offsets.data() + rows.begin * each, (rows.end - rows.begin) * each,
                                layer.packed.data() + size_t(rows.begin * each * channels) + begin, size_t(channels), nullptr,
                                target, planes.data() + begin
                            );
                        });
                    });
                });
            }
        }
    }
    if (!(layer.mode & TRAINED)) return;
    constexpr int MOST_O = REGISTERS == 32 ? 6 : 2, MOST_K = REGISTERS == 32 ? 6 : 4;
    // Six by four or four by six, whichever divides the outputs better.
    const bool tall = MOST_O == 6 && (outputs + 5) / 6 * 6 <= (outputs + 3) / 4 * 4;
    const int tile_outputs = MOST_O == 6 ? (tall ? 6 : 4) : MOST_O, tile_taps = tall ? 4 : MOST_K;
    // Taps that lie on one pixel of the kernel, or on one row of it, see the image at the same outputs.
    const int channels = values.channels, together = channels >= 4 ? channels : channels * int(own.kernel_width);
    Walk walk{
        batch.blocks, 0, 0, 0, 0, slopes.size(), slopes.row(), values.size(), size_t(own.stride_height) * values.row(),
        size_t(own.stride_width)
    };
    in_parts(outputs, tile_outputs, [&](int first_output, int some_outputs) {
        const Vec* slope[MOST_O];
        for (int o = 0; o < some_outputs; ++o) slope[o] = layer.out->slope(0) + slopes.at(first_output + o, 0, 0);
        for (int group = 0; group < count; group += together) {
            const int pixel = group / channels, y = pixel / int(own.kernel_width), x = pixel % int(own.kernel_width);
            const Range rows = touched(y, own.stride_height, own.pad_height, values.height, slopes.height);
            const Range columns = touched(x, own.stride_width, own.pad_width, values.width, slopes.width);
            walk.top = rows.begin;
            walk.bottom = rows.end;
            walk.left = together == channels ? columns.begin : 0;
            walk.right = together == channels ? columns.end : slopes.width;
            in_parts(together, tile_taps, [&](int first, int some) {
                const Vec* from[MOST_K];
                for (int k = 0; k < some; ++k) from[k] = layer.in->value(0) + layer.offsets[size_t(group + first + k)];
                Real* found = gradient + own.weight + size_t(first_output) * size_t(count) + size_t(group + first);
                with_constant<MOST_O>(some_outputs, [&](auto O) {
                    with_constant<MOST_K>(some, [&](auto K) {
                        correlate<Real, O(), K()>(slope, from, walk, found, size_t(count));
                    });
                });
            });
        }
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
