// Batch normalisation, over the examples of a minibatch, and group normalisation, of each example alone.
#pragma once

#include "network.h"

namespace COTERIE_TARGET {

// Calls work(values, slopes) for each row of pixels of one channel: places in the two frames of an image.
template <class Work>
inline void each_row(const Frame& values, const Frame& slopes, int channel, Work&& work) {
    for (int y = 0; y < values.height; ++y) work(values.at(channel, y, 0), slopes.at(channel, y, 0));
}

// The sum of term(pixel) over a row of pixels, in four sums that do not wait for each other.
template <class Real, class Term>
inline VecOf<Real> sum_row(int width, Term&& term) {
    VecOf<Real> part[4] = {};
    int x = 0;
    for (; x + 4 <= width; x += 4)
        for (int i = 0; i < 4; ++i) part[i] += term(x + i);
    for (; x < width; ++x) part[0] += term(x);
    return (part[0] + part[1]) + (part[2] + part[3]);
}

template <class Real>
void Network<Real>::batch_norm(Layer<Real>& layer, const Minibatch<Real>& batch) {
    const LayerSpec& own = layer.spec;
    const Frame &from = layer.in->values, &to = layer.out->values;
    const Real count = Real(batch.count) * Real(from.height * from.width);
    const Real *scale = at(own.weight), *shift = at(own.bias);
    layer.mean.resize(size_t(from.channels));
    layer.inverse.resize(size_t(from.channels));
    for (int c = 0; c < from.channels; ++c) {
        Real mean, variance;
        if (trains(layer)) {
            // The sum over one channel of what `term` makes of each vector, lanes without an example left out.
            auto over_channel = [&](auto&& term) {
                Vec total{};
                for (int block = 0; block < batch.blocks; ++block) {
                    Vec part{};
                    for (int y = 0; y < from.height; ++y) {
                        const Vec* in = layer.in->value(block) + from.at(c, y, 0);
                        part += sum_row<Real>(from.width, [&](int x) { return term(in[x]); });
                    }
                    total += batch.lanes(block) < WIDTH<Real> ? part * batch.mask(block) : part;
                }
                return sum<Real>(total);
            };
            mean = over_channel([](Vec value) { return value; }) / count;
            variance = over_channel([&](Vec value) { return (value - mean) * (value - mean); }) / count;
            if (own.mean >= 0) {
                Real &running = buffers[own.mean + c], &spread_so_far = buffers[own.variance + c];
                const Real share = Real(own.momentum);
                running = (1 - share) * running + share * mean;
                spread_so_far = (1 - share) * spread_so_far + share * variance * count / (count - 1);
            }
        } else {
            mean = buffers[own.mean + c];
            variance = buffers[own.variance + c];
        }
        const Real inverse = 1 / std::sqrt(variance + Real(own.number));
        layer.mean[size_t(c)] = mean;
        layer.inverse[size_t(c)] = inverse;
        const Real factor = inverse * (scale ? scale[c] : 1), begin = (shift ? shift[c] : 0) - mean * factor;
        for (int block = 0; block < batch.blocks; ++block)
            for (int y = 0; y < from.height; ++y) {
                const Vec* in = layer.in->value(block) + from.at(c, y, 0);
                Vec* out = layer.out->value(block) + to.at(c, y, 0);
                for (int x = 0; x < from.width; ++x) out[x] = in[x] * factor + begin;
            }
    }
}

template <class Real>
void Network<Real>::batch_norm_back(Layer<Real>& layer, const Minibatch<Real>& batch, bool below) {
    const LayerSpec& own = layer.spec;
    const Frame &values = layer.in->values, &slopes = layer.out->slopes, &to = layer.in->slopes;
    const Real count = Real(batch.count) * Real(values.height * values.width);
    const Real* scale = at(own.weight);
    for (int c = 0; c < values.channels; ++c) {
        const Real mean = layer.mean[size_t(c)], inverse = layer.inverse[size_t(c)];
        Vec total{}, along{};
        for (int block = 0; block < batch.blocks; ++block)
            each_row(values, slopes, c, [&](size_t row, size_t slope_row) {
                const Vec *in = layer.in->value(block) + row, *slope = layer.out->slope(block) + slope_row;
                total += sum_row<Real>(values.width, [&](int x) { return slope[x]; });
                along += sum_row<Real>(values.width, [&](int x) { return slope[x] * (in[x] - mean); });
            });
        const Real all = sum<Real>(total), weighted = sum<Real>(along) * inverse;
        if (own.weight >= 0 && (layer.mode & TRAINED)) {
            gradient[own.weight + c] = weighted;
            gradient[own.bias + c] = all;
        }
        if (!below) continue;
        const Real factor = inverse * (scale ? scale[c] : 1);
        const Real centre = trains(layer) ? all / count : 0, tilt = trains(layer) ? weighted / count * inverse : 0;
        for (int block = 0; block < batch.blocks; ++block) {
            const Vec mask = batch.mask(block);
            for (int y = 0; y < values.height; ++y) {
                const Vec *in = layer.in->value(block) + values.at(c, y, 0),
                          *slope = layer.out->slope(block) + slopes.at(c, y, 0);
                Vec* out = layer.in->slope(block) + to.at(c, y, 0);
                for (int x = 0; x < values.width; ++x)
                    out[x] = (slope[x] - centre - (in[x] - mean) * tilt) * factor * mask;
            }
        }
    }
}

template <class Real>
void Network<Real>::group_norm(Layer<Real>& layer, const Minibatch<Real>& batch) {
    const LayerSpec& own = layer.spec;
    const Frame &from = layer.in->values, &to = layer.out->values;
    const int groups = int(own.groups), each = from.channels / groups;
    const Real count = Real(each * from.height * from.width);
    const Real *scale = at(own.weight), *shift = at(own.bias);
    layer.lane_mean.resize(size_t(batch.blocks * groups));
    layer.lane_inverse.resize(size_t(batch.blocks * groups));
    for (int block = 0; block < batch.blocks; ++block)
        for (int group = 0; group < groups; ++group) {
            Vec total{}, squares{};
            auto over_group = [&](auto&& work) {
                for (int c = group * each; c < (group + 1) * each; ++c)
                    each_row(from, from, c, [&](size_t row, size_t) {
                        for (int x = 0; x < from.width; ++x) work(layer.in->value(block)[row + size_t(x)]);
                    });
            };
            over_group([&](Vec value) { total += value; });
            const Vec mean = total / count;
            over_group([&](Vec value) { squares += (value - mean) * (value - mean); });
            const Vec inverse = Real(1) / square_root<Real>(squares / count + Real(own.number));
            layer.lane_mean[size_t(block * groups + group)] = mean;
            layer.lane_inverse[size_t(block * groups + group)] = inverse;
            for (int c = group * each; c < (group + 1) * each; ++c)
                for (int y = 0; y < from.height; ++y) {
                    const Vec* in = layer.in->value(block) + from.at(c, y, 0);
                    Vec* out = layer.out->value(block) + to.at(c, y, 0);
                    for (int x = 0; x < from.width; ++x)
                        out[x] = (in[x] - mean) * inverse * (scale ? scale[c] : 1) + (shift ? shift[c] : 0);
                }
        }
}

template <class Real>
void Network<Real>::group_norm_back(Layer<Real>& layer, const Minibatch<Real>& batch, bool below) {
    const LayerSpec& own = layer.spec;
    const Frame &values = layer.in->values, &slopes = layer.out->slopes, &to = layer.in->slopes;
    const int groups = int(own.groups), each = values.channels / groups;
    const Real count = Real(each * values.height * values.width);
    const Real* scale = at(own.weight);
    const bool learns = own.weight >= 0 && (layer.mode & TRAINED);
    for (int c = 0; learns && c < values.channels; ++c) gradient[own.weight + c] = gradient[own.bias + c] = 0;
    for (int block = 0; block < batch.blocks; ++block)
        for (int group = 0; group < groups; ++group) {
            const Vec mean = layer.lane_mean[size_t(block * groups + group)];
            const Vec inverse = layer.lane_inverse[size_t(block * groups + group)];
            Vec centre{}, tilt{};
            for (int c = group * each; c < (group + 1) * each; ++c) {
                Vec total{}, along{};
                each_row(values, slopes, c, [&](size_t row, size_t slope_row) {
                    const Vec *in = layer.in->value(block) + row, *slope = layer.out->slope(block) + slope_row;
                    for (int x = 0; x < values.width; ++x) {
                        total += slope[x];
                        along += slope[x] * (in[x] - mean) * inverse;
                    }
                });
                centre += total * (scale ? scale[c] : 1);
                tilt += along * (scale ? scale[c] : 1);
                if (learns) {
                    gradient[own.weight + c] += sum<Real>(along * batch.mask(block));
                    gradient[own.bias + c] += sum<Real>(total);
                }
            }
            if (!below) continue;
            centre /= count;
            tilt /= count;
            for (int c = group * each; c < (group + 1) * each; ++c)
                for (int y = 0; y < values.height; ++y) {
                    const Vec *in = layer.in->value(block) + values.at(c, y, 0),
                              *slope = layer.out->slope(block) + slopes.at(c, y, 0);
                    Vec* out = layer.in->slope(block) + to.at(c, y, 0);
                    for (int x = 0; x < values.width; ++x)
                        out[x] = (slope[x] * (scale ? scale[c] : 1) - centre - (in[x] - mean) * inverse * tilt) *
                                 inverse * batch.mask(block);
                }
        }
}

}  // namespace COTERIE_TARGET
