// Building a chain from its description, reading a minibatch, and going through the layers.
#pragma once

#include "activation.h"
#include "convolution.h"
#include "linear.h"
#include "loss.h"
#include "network.h"
#include "normalisation.h"
#include "pooling.h"

namespace COTERIE_TARGET {

inline int pooled(int size, int64_t kernel, int64_t stride, int64_t pad) {
    return int((size + 2 * pad - kernel) / stride + 1);
}

// The size of what a layer gives, without margins.
inline Frame frame_after(const LayerSpec& layer, const Frame& in) {
    Frame out{in.channels, in.height, in.width, 0, 0};
    if (layer.kind == LINEAR) return Frame{int(layer.outputs), 1, 1, 0, 0};
    if (layer.kind == FLATTEN) return Frame{in.features(), 1, 1, 0, 0};
    if (layer.kind == CONVOLUTION) out.channels = int(layer.outputs);
    if (layer.kind == CONVOLUTION || layer.kind == MAX_POOL || layer.kind == AVERAGE_POOL) {
        out.height = pooled(in.height, layer.kernel_height, layer.stride_height, layer.pad_height);
        out.width = pooled(in.width, layer.kernel_width, layer.stride_width, layer.pad_width);
    }
    return out;
}

// Layers that may overwrite their input, unless the layer before needs it to go back.
inline bool is_in_place(int64_t kind, int64_t before) {
    return (kind == RELU || kind == TANH || kind == DROPOUT) && before != TANH && before != -1;
}

template <class Real>
Network<Real>::Network(const ChainSpec& spec, bool training) : spec_(spec), training_(training) {
    auto add_image = [this](const Frame& frame) {
        images_.push_back(std::make_unique<Image<Real>>());
        images_.back()->values = images_.back()->slopes = frame;
    };
    add_image(Frame{int(spec.channels), int(spec.height), int(spec.width), 0, 0});
    layers_.resize(size_t(spec.count));
    for (int64_t i = 0; i < spec.count; ++i) {
        Layer<Real>& layer = layers_[size_t(i)];
        layer.spec = spec.layers[i];
        layer.in = images_.back().get();
        if (!is_in_place(layer.spec.kind, i ? spec.layers[i - 1].kind : -1))
            add_image(frame_after(layer.spec, layer.in->values));
        layer.out = images_.back().get();
    }
    for (Layer<Real>& layer : layers_) {
        const LayerSpec& own = layer.spec;
        if (own.kind != CONVOLUTION) continue;
        layer.in->values.margin_height = int(own.pad_height);
        layer.in->values.margin_width = int(own.pad_width);
        if (own.stride_height == 1 && own.stride_width == 1) {
            layer.out->slopes.margin_height = int(std::max<int64_t>(0, own.kernel_height - 1 - own.pad_height));
            layer.out->slopes.margin_width = int(std::max<int64_t>(0, own.kernel_width - 1 - own.pad_width));
        }
    }
    for (Layer<Real>& layer : layers_)
        if (layer.spec.kind == CONVOLUTION) prepare_convolution(layer);
    spec_.layers = nullptr;
}

template <class Real>
void Network<Real>::seed_dropout(uint64_t seed) {
    for (Layer<Real>& layer : layers_)
        if (layer.spec.kind == DROPOUT)
            layer.uniform = std::make_unique<coterie::TorchUniform>(seed + uint64_t(layer.spec.depth));
}

template <class Real>
bool Network<Real>::can_take(int count) const {
    for (const Layer<Real>& layer : layers_)
        if (layer.spec.kind == BATCH_NORM && trains(layer) && count * layer.in->values.height * layer.in->values.width < 2)
            return false;
    return true;
}

// Turns the first `count` numbers of rows of examples into vectors of examples; lanes without an example are zero.
template <class Real>
inline void to_lanes(const Real* const* rows, int lanes, int count, VecOf<Real>* to) {
    constexpr int W = WIDTH<Real>;
    for (int first = 0; first < count; first += W) {
        const int some = std::min(W, count - first);
        VecOf<Real> square[W] = {};
        for (int i = 0; i < lanes; ++i)
            square[i] = some == W ? load(rows[i] + first) : load_some(rows[i] + first, some);
        transpose<Real>(square);
        for (int i = 0; i < some; ++i) to[first + i] = square[i];
    }
}

// Reads a minibatch into the first image.
template <class Real>
void Network<Real>::gather(const Minibatch<Real>& batch, const Real* x) {
    Image<Real>& image = *images_.front();
    const Frame& frame = image.values;
    const int64_t features = frame.features();
    for (int block = 0; block < batch.blocks; ++block) {
        const int lanes = batch.lanes(block);
        const Real* from[WIDTH<Real>];
        for (int i = 0; i < lanes; ++i) from[i] = x + batch.row(block * WIDTH<Real> + i) * features;
        if (frame.height * frame.width == 1) {
            to_lanes<Real>(from, lanes, frame.channels, image.value(block));
            continue;
        }
        for (int c = 0; c < frame.channels; ++c)
            for (int y = 0; y < frame.height; ++y) {
                to_lanes<Real>(from, lanes, frame.width, image.value(block) + frame.at(c, y, 0));
                for (int i = 0; i < lanes; ++i) from[i] += frame.width;
            }
    }
}

template <class Real>
void Network<Real>::read(const Minibatch<Real>& batch, const Examples& examples) {
    if (batch.blocks > reserved_) {
        for (auto& image : images_) image->reserve(batch.blocks, training_);
        reserved_ = batch.blocks;
    }
    gather(batch, static_cast<const Real*>(examples.x));
}

template <class Real>
void Network<Real>::forward(const Minibatch<Real>& batch, const Examples& examples) {
    const Real* x = static_cast<const Real*>(examples.x);
    for (Layer<Real>& layer : layers_) switch (layer.spec.kind) {
            case CONVOLUTION: convolve(layer, batch); break;
            case LINEAR: apply_linear(layer, batch, &layer == &layers_.front() ? x : nullptr); break;
            case BATCH_NORM: batch_norm(layer, batch); break;
            case GROUP_NORM: group_norm(layer, batch); break;
            case MAX_POOL: max_pool(layer, batch); break;
            case AVERAGE_POOL: average_pool(layer, batch, false); break;
            case DROPOUT: drop(layer, batch); break;
            case FLATTEN: flatten(layer, batch, false); break;
            default: activate(layer, batch, false);
        }
}

template <class Real>
void Network<Real>::backward(const Minibatch<Real>& batch, const Examples&) {
    size_t lowest = 0;  // below the first layer that is trained there is nothing to learn
    while (lowest < layers_.size() && (layers_[lowest].spec.weight < 0 || !(layers_[lowest].mode & TRAINED))) ++lowest;
    for (size_t i = layers_.size(); i-- > lowest;) {
        Layer<Real>& layer = layers_[i];
        const bool below = i > lowest;
        switch (layer.spec.kind) {
            case CONVOLUTION: convolve_back(layer, batch, below); break;
            case LINEAR: linear_back(layer, batch, below); break;
            case BATCH_NORM: batch_norm_back(layer, batch, below); break;
            case GROUP_NORM: group_norm_back(layer, batch, below); break;
            case MAX_POOL: max_pool_back(layer, batch); break;
            case AVERAGE_POOL: average_pool(layer, batch, true); break;
            case DROPOUT: drop_back(layer, batch); break;
            case FLATTEN: flatten(layer, batch, true); break;
            default: activate(layer, batch, true);
        }
    }
}

}  // namespace COTERIE_TARGET
