// The work of one thread: train clients, evaluate models, find gradients, until nothing is left.
#pragma once

#include "chain.h"

namespace COTERIE_TARGET {

inline int64_t take_next(int64_t* next) { return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED); }
inline bool is_stopped(const int32_t* stop) { return __atomic_load_n(stop, __ATOMIC_RELAXED) != 0; }

template <class Real>
class Worker {
   public:
    explicit Worker(const ChainSpec& spec)
        : parameters_(size_t(spec.parameters)), trained_(spec, true), judged_(spec, false) {
        own_.resize(parameters_);
        gradient_.resize(parameters_);
        momenta_.resize(parameters_);
        squares_.resize(parameters_);
        buffers_.resize(size_t(spec.buffers) + 1);
        start_.resize(parameters_);
    }

    void train(const Training& task) {
        for (int64_t i; !is_stopped(task.stop) && (i = take_next(task.next)) < task.clients;) train_one(task, i);
    }

    void evaluate(const Evaluation& task) {
        const int64_t parts = (task.count + task.part - 1) / task.part;
        for (int64_t i; !is_stopped(task.stop) && (i = take_next(task.next)) < parts;) evaluate_part(task, i * task.part);
    }

    // Returns false where the minibatch is too small for a batch normalisation.
    bool find_slope(const Slope& task) {
        const ChainSpec& spec = trained_.spec();
        const Real* start = static_cast<const Real*>(task.params);
        const Real* buffers = static_cast<const Real*>(task.buffers);
        weights_ = own_.data();
        std::copy(start, start + parameters_, weights_);
        std::copy(buffers, buffers + spec.buffers, buffers_.begin());
        bind();
        for (Layer<Real>& layer : trained_.layers()) layer.mode = TRAINED | TRAINING;
        trained_.gradient = static_cast<Real*>(task.gradient);
        trained_.fused = nullptr;
        trained_.seed_dropout(task.dropout_seed);
        const Minibatch<Real> batch(task.rows, 0, int(task.count));
        if (!trained_.can_take(batch.count)) return false;
        trained_.read(batch, task.examples);
        trained_.forward(batch, task.examples);
        *task.loss = trained_.loss(batch, task.examples, nullptr, true);
        trained_.backward(batch, task.examples);
        return true;
    }

   private:
    void bind() {
        trained_.params = weights_;
        trained_.buffers = buffers_.data();
        trained_.gradient = gradient_.data();
    }

    void train_one(const Training& task, int64_t i) {
        const ChainSpec& spec = trained_.spec();
        const size_t row = size_t(task.start_rows[i]);
        const Real* start = static_cast<const Real*>(task.start_params) + row * parameters_;
        const Real* buffers = static_cast<const Real*>(task.start_buffers) + row * size_t(spec.buffers);
        // Where all of a model is trained, the weights move where the result is wanted.
        const bool whole = task.trained == 1 && size_t(task.trained_end[0] - task.trained_begin[0]) == parameters_;
        Real* out = static_cast<Real*>(task.out_params) + size_t(i) * parameters_;
        weights_ = whole ? out : own_.data();
        if (start != weights_) std::copy(start, start + parameters_, weights_);
        std::copy(buffers, buffers + spec.buffers, buffers_.begin());
        if (task.pull != 0 || task.anchors) std::copy(start, start + parameters_, start_.begin());
        Real* kept = task.momenta ? static_cast<Real*>(task.momenta) + size_t(i) * parameters_ : nullptr;
        if (kept) std::copy(kept, kept + parameters_, momenta_.begin());
        if (task.adam) {
            std::fill(momenta_.begin(), momenta_.end(), Real(0));
            std::fill(squares_.begin(), squares_.end(), Real(0));
        }
        prepare(task, i);
        step_.fresh = !kept && !task.adam;
        coterie::Order order(task.seeds[i], task.sizes[i], task.batch, int(task.half), task.half < 0 ? 0 : task.half_seeds[i]);
        double total = 0;
        for (int64_t step = 0; step < task.steps[i]; ++step) {
            const auto [rows, count] = order.next();
            const Minibatch<Real> batch(rows, task.first[i], count);
            if (!trained_.can_take(count)) {
                task.status[i] = 1;
                return;
            }
            total += take_step(task, i, step, batch);
            step_.fresh = false;
        }
        task.losses[i] = total / double(task.steps[i]);
        task.status[i] = 0;
        hand_over(task, i);
        if (kept)
            for (int64_t r = 0; r < task.trained; ++r)
                std::copy(
                    momenta_.begin() + task.trained_begin[r], momenta_.begin() + task.trained_end[r],
                    kept + task.trained_begin[r]
                );
    }

    void prepare(const Training& task, int64_t i) {
        bind();
        for (size_t l = 0; l < trained_.layers().size(); ++l) trained_.layers()[l].mode = task.modes[l];
        trained_.momenta = task.momentum != 0 ? momenta_.data() : nullptr;
        step_ = Step<Real>{Real(task.lr), Real(task.momentum), Real(task.decay), 1, 1, task.adam != 0, false};
        fuses_ = !task.adam && !task.anchors && task.pull == 0;
        trained_.fused = fuses_ ? &step_ : nullptr;
        if (task.dropout_seeds) trained_.seed_dropout(task.dropout_seeds[i]);
    }

    double take_step(const Training& task, int64_t i, int64_t step, const Minibatch<Real>& batch) {
        trained_.read(batch, task.examples);
        trained_.forward(batch, task.examples);
        const double loss = trained_.loss(batch, task.examples, nullptr, true);
        trained_.backward(batch, task.examples);
        if (fuses_) {
            move_the_rest();
            return loss;
        }
        for (int64_t r = 0; r < task.ranges; ++r) add_penalty(task, i, r);
        if (task.adam) {
            step_.first_scale = Real(1 / (1 - std::pow(0.9, double(step + 1))));
            step_.second_scale = Real(1 / (1 - std::pow(0.999, double(step + 1))));
        }
        for (int64_t r = 0; r < task.trained; ++r)
            move(task.trained_begin[r], task.trained_end[r], Real(task.pull));
        return loss;
    }

    // Adds strength * (w - anchor) on one range.
    void add_penalty(const Training& task, int64_t i, int64_t range) {
        const int64_t which = i * task.anchors + task.range_anchor[range], row = task.anchor_rows[which];
        const Real strength = Real(task.strengths[which]);
        const Real* anchor =
            row < 0 ? start_.data() : static_cast<const Real*>(task.anchor_params) + size_t(row) * parameters_;
        for (int64_t p = task.range_begin[range]; p < task.range_end[range]; ++p)
            gradient_[size_t(p)] += strength * (weights_[p] - anchor[p]);
    }

    // Moves what linear layers have not moved at once: everything but their weights.
    void move_the_rest() {
        for (const Layer<Real>& layer : trained_.layers()) {
            if (!(layer.mode & TRAINED)) continue;
            const LayerSpec& own = layer.spec;
            if (own.weight >= 0 && own.kind != LINEAR) move(own.weight, own.weight + weights_of(layer), 0);
            if (own.bias >= 0) move(own.bias, own.bias + biases_of(layer), 0);
        }
    }
    static int64_t biases_of(const Layer<Real>& layer) { return layer.out->values.channels; }
    static int64_t weights_of(const Layer<Real>& layer) {
        const int64_t channels = layer.out->values.channels;
        return layer.spec.kind == CONVOLUTION ? channels * int64_t(layer.offsets.size()) : channels;
    }

    void move(int64_t begin, int64_t end, Real pull) {
        Real *w = weights_, *m = momenta_.data(), *v = squares_.data();
        const Real *g = gradient_.data(), *start = start_.data();
        if (!step_.adam && pull == 0) {
            Real* moving = step_.momentum != 0 ? m : nullptr;
            int64_t p = begin;
            for (; p + WIDTH<Real> <= end; p += WIDTH<Real>) step_.sgd(w + p, moving ? moving + p : nullptr, load(g + p));
            if (p < end)
                step_.sgd(w + p, moving ? moving + p : nullptr, load_some(g + p, int(end - p)), int(end - p));
            return;
        }
        for (int64_t p = begin; p < end; ++p) {
            const Real back = pull != 0 ? (start[p] - w[p]) * pull : 0;
            if (step_.adam)
                step_.adam_one(w[p], m[p], v[p], g[p]);
            else {
                const Real slope = g[p] + step_.decay * w[p];
                m[p] = step_.fresh ? slope : step_.momentum * m[p] + slope;
                w[p] -= step_.lr * (step_.momentum != 0 ? m[p] : slope);
            }
            w[p] += back;
        }
    }

    void hand_over(const Training& task, int64_t i) {
        Real* out = static_cast<Real*>(task.out_params) + size_t(i) * parameters_;
        for (int64_t r = 0; weights_ != out && r < task.trained; ++r)
            std::copy(own_.begin() + task.trained_begin[r], own_.begin() + task.trained_end[r], out + task.trained_begin[r]);
        Real* state = static_cast<Real*>(task.out_buffers) + size_t(i) * size_t(trained_.spec().buffers);
        for (int64_t r = 0; r < task.trained_buffers; ++r)
            std::copy(buffers_.begin() + task.buffer_begin[r], buffers_.begin() + task.buffer_end[r], state + task.buffer_begin[r]);
    }

    void evaluate_part(const Evaluation& task, int64_t begin) {
        const int count = int(std::min(task.part, task.count - begin));
        const ChainSpec& spec = judged_.spec();
        const Minibatch<Real> batch(task.rows + begin, 0, count);
        judged_.fold = true;
        judged_.read(batch, task.examples);
        for (int64_t m = 0; m < task.model_count; ++m) {
            const size_t row = size_t(task.models[m]);
            judged_.params = const_cast<Real*>(static_cast<const Real*>(task.params)) + row * parameters_;
            judged_.buffers = const_cast<Real*>(static_cast<const Real*>(task.buffers)) + row * size_t(spec.buffers);
            judged_.forward(batch, task.examples);
            const size_t place = size_t(m) * size_t(task.count) + size_t(begin);
            if (task.losses) judged_.loss(batch, task.examples, static_cast<Real*>(task.losses) + place, false);
            if (task.outputs) write_outputs(static_cast<Real*>(task.outputs) + place * size_t(spec.outputs), batch);
        }
    }

    void write_outputs(Real* to, const Minibatch<Real>& batch) {
        const int outputs = int(judged_.spec().outputs);
        for (int b = 0; b < batch.count; ++b) {
            const VecOf<Real>* from = judged_.output().value(b / WIDTH<Real>);
            for (int c = 0; c < outputs; ++c) to[b * outputs + c] = from[c][b % WIDTH<Real>];
        }
    }

    size_t parameters_;
    Network<Real> trained_, judged_;
    std::vector<Real> own_, gradient_, momenta_, squares_, buffers_, start_;
    Real* weights_ = nullptr;  // those that move: `own_`, or a row of the results
    Step<Real> step_{};
    bool fuses_ = false;
};

}  // namespace COTERIE_TARGET
