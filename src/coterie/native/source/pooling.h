// Pooling: the largest entry of each window, or the mean of it.
#pragma once

#include "network.h"

namespace COTERIE_TARGET {

// Calls work(output place, y, x) for each output pixel, with the corner of its window in the input.
template <class Work>
inline void each_window(const LayerSpec& own, const Frame& out, Work&& work) {
    for (int c = 0; c < out.channels; ++c)
        for (int y = 0; y < out.height; ++y)
            for (int x = 0; x < out.width; ++x)
                work(c, y, x, int(y * own.stride_height - own.pad_height), int(x * own.stride_width - own.pad_width));
}

// Calls work(y, x, number) for each pixel of a window that is inside of the image.
template <class Work>
inline void each_inside(const LayerSpec& own, const Frame& in, int top, int left, Work&& work) {
    for (int i = 0; i < own.kernel_height; ++i)
        for (int j = 0; j < own.kernel_width; ++j) {
            const int y = top + i, x = left + j;
            if (y >= 0 && x >= 0 && y < in.height && x < in.width) work(y, x, int(i * own.kernel_width + j));
        }
}

inline bool windows_overlap(const LayerSpec& own) {
    return own.stride_height < own.kernel_height || own.stride_width < own.kernel_width;
}

template <class Real>
inline bool is_plain_half(const LayerSpec& own) {
    return own.kernel_height == 2 && own.kernel_width == 2 && own.stride_height == 2 && own.stride_width == 2 &&
           own.pad_height == 0 && own.pad_width == 0;
}

template <class Real>
void Network<Real>::max_pool(Layer<Real>& layer, const Minibatch<Real>& batch) {
    const LayerSpec& own = layer.spec;
    const Frame &from = layer.in->values, &to = layer.out->values;
    typedef IntOf<Real> Int;
    const size_t pixels = size_t(to.features());
    layer.winner.reserve(size_t(batch.blocks) * pixels);
    for (int block = 0; block < batch.blocks; ++block) {
        const Vec* in = layer.in->value(block);
        Vec* out = layer.out->value(block);
        Int* winner = layer.winner.get() + size_t(block) * pixels;
        // A number that is none wins, as it does in torch.
        auto wins = [](Vec value, Vec best) { return (value > best) | (value != value); };
        if (is_plain_half<Real>(own)) {
            for (int c = 0; c < to.channels; ++c)
                for (int y = 0; y < to.height; ++y) {
                    const Vec *upper = in + from.at(c, 2 * y, 0), *lower = in + from.at(c, 2 * y + 1, 0);
                    Vec* row = out + to.at(c, y, 0);
                    for (int x = 0; x < to.width; ++x) {
                        Vec best = upper[2 * x];
                        Int which{};
                        const Vec others[3] = {upper[2 * x + 1], lower[2 * x], lower[2 * x + 1]};
                        for (int i = 0; i < 3; ++i) {
                            const Int better = wins(others[i], best);
                            best = better ? others[i] : best;
                            which = better ? Int{} + (i + 1) : which;
                        }
                        row[x] = best;
                        *winner++ = which;
                    }
                }
            continue;
        }
        each_window(own, to, [&](int c, int y, int x, int top, int left) {
            Vec best = spread(-std::numeric_limits<Real>::infinity());
            Int which{};
            each_inside(own, from, top, left, [&](int in_y, int in_x, int number) {
                const Vec value = in[from.at(c, in_y, in_x)];
                const Int better = wins(value, best);
                best = better ? value : best;
                which = better ? Int{} + number : which;
            });
            out[to.at(c, y, x)] = best;
            *winner++ = which;
        });
    }
}

// Sets the slopes of the inputs to zero where windows overlap, so that they can be added up.
template <class Real>
inline void clear_slopes(Image<Real>& image, int block) {
    const Frame& frame = image.slopes;
    for (int c = 0; c < frame.channels; ++c)
        for (int y = 0; y < frame.height; ++y)
            std::memset(image.slope(block) + frame.at(c, y, 0), 0, size_t(frame.width) * sizeof(VecOf<Real>));
}

template <class Real>
void Network<Real>::max_pool_back(Layer<Real>& layer, const Minibatch<Real>& batch) {
    const LayerSpec& own = layer.spec;
    const Frame &slopes = layer.out->slopes, &to = layer.in->slopes;
    typedef IntOf<Real> Int;
    const bool overlap = windows_overlap(own);
    for (int block = 0; block < batch.blocks; ++block) {
        if (overlap) clear_slopes(*layer.in, block);
        const Int* winner = layer.winner.get() + size_t(block) * size_t(slopes.features());
        const Vec* from = layer.out->slope(block);
        Vec* out = layer.in->slope(block);
        if (is_plain_half<Real>(own)) {
            for (int c = 0; c < slopes.channels; ++c)
                for (int y = 0; y < slopes.height; ++y) {
                    Vec *upper = out + to.at(c, 2 * y, 0), *lower = out + to.at(c, 2 * y + 1, 0);
                    const Vec* row = from + slopes.at(c, y, 0);
                    for (int x = 0; x < slopes.width; ++x, ++winner) {
                        upper[2 * x] = *winner == 0 ? row[x] : Vec{};
                        upper[2 * x + 1] = *winner == 1 ? row[x] : Vec{};
                        lower[2 * x] = *winner == 2 ? row[x] : Vec{};
                        lower[2 * x + 1] = *winner == 3 ? row[x] : Vec{};
                    }
                }
            continue;
        }
        each_window(own, slopes, [&](int c, int y, int x, int top, int left) {
            const Vec slope = from[slopes.at(c, y, x)];
            const Int which = *winner++;
            each_inside(own, to, top, left, [&](int in_y, int in_x, int number) {
                const Vec part = which == number ? slope : Vec{};
                Vec& target = out[to.at(c, in_y, in_x)];
                target = overlap ? target + part : part;
            });
        });
    }
}

// Means over windows; pixels beyond the border count as zeros.
template <class Real>
void Network<Real>::average_pool(Layer<Real>& layer, const Minibatch<Real>& batch, bool back) {
    const LayerSpec& own = layer.spec;
    const Real share = Real(1) / Real(own.kernel_height * own.kernel_width);
    for (int block = 0; block < batch.blocks; ++block) {
        if (!back) {
            const Frame &from = layer.in->values, &to = layer.out->values;
            each_window(own, to, [&](int c, int y, int x, int top, int left) {
                Vec total{};
                each_inside(own, from, top, left, [&](int in_y, int in_x, int) {
                    total += layer.in->value(block)[from.at(c, in_y, in_x)];
                });
                layer.out->value(block)[to.at(c, y, x)] = total * share;
            });
            continue;
        }
        const Frame &from = layer.out->slopes, &to = layer.in->slopes;
        clear_slopes(*layer.in, block);
        each_window(own, from, [&](int c, int y, int x, int top, int left) {
            const Vec part = layer.out->slope(block)[from.at(c, y, x)] * share;
            each_inside(own, to, top, left, [&](int in_y, int in_x, int) {
                layer.in->slope(block)[to.at(c, in_y, in_x)] += part;
            });
        });
    }
}

}  // namespace COTERIE_TARGET
