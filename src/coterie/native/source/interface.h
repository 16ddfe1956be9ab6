// What Python hands over: plain structures, the same in coterie/native/library.py, field by field.
#pragma once

#include <cstdint>

extern "C" {

enum Kind : int64_t {
    CONVOLUTION, LINEAR, BATCH_NORM, GROUP_NORM, RELU, TANH, GELU, GELU_TANH, MAX_POOL, AVERAGE_POOL, DROPOUT, FLATTEN
};

enum Loss : int64_t { CROSS_ENTROPY, SQUARED, BINARY };

// One layer. Places are positions in the flat vectors, -1 where there is nothing.
struct LayerSpec {
    int64_t kind;
    int64_t outputs;  // channels of a convolution, features of a linear layer
    int64_t kernel_height, kernel_width, stride_height, stride_width, pad_height, pad_width;
    int64_t weight, bias;    // in the parameter vector
    int64_t mean, variance;  // in the buffer vector
    int64_t groups;          // of a group normalisation
    int64_t whole_channels;  // dropout of channels
    int64_t depth;           // what is added to a client's dropout seed
    double number;           // epsilon of a normalisation, probability of a dropout
    double momentum;         // of running statistics
};

struct ChainSpec {
    const LayerSpec* layers;
    int64_t count;
    int64_t channels, height, width;  // of an example; a vector is channels alone
    int64_t loss, outputs;
    int64_t parameters, buffers;  // lengths of the flat vectors
};

// Examples: rows of a pool, in the precision of the models.
struct Examples {
    const void* x;
    const int64_t* classes;  // of cross entropy
    const void* targets;     // of the other losses, in the precision of the models
};

enum Mode : int32_t { TRAINED = 1, TRAINING = 2 };

// One pass of local training of many clients; threads share it and take the next client from `next`.
struct Training {
    Examples examples;
    int64_t clients;
    const int64_t *first, *sizes, *steps;  // of each client: its first row, its examples, its minibatches
    const uint64_t *seeds, *half_seeds, *dropout_seeds;
    const void *start_params, *start_buffers;
    const int64_t* start_rows;
    void *out_params, *out_buffers;  // row i for client i
    void* momenta;                   // row i for client i, read and written; null where they are not kept
    double* losses;
    int32_t* status;  // 0, or 1 where a batch normalisation has a single value for each channel
    int64_t batch, half;
    double lr, momentum, decay, pull;
    int64_t adam;
    // Penalties strength / 2 * |w - anchor|^2 on ranges of the parameters: anchors are rows of `anchor_params`, or with
    // row -1 the start; range r belongs to anchor `range_anchor[r]`.
    int64_t anchors, ranges;
    const double* strengths;     // clients x anchors
    const int64_t* anchor_rows;  // clients x anchors
    const void* anchor_params;
    const int64_t *range_anchor, *range_begin, *range_end;
    const int32_t* modes;  // of each layer
    int64_t trained, trained_buffers;
    const int64_t *trained_begin, *trained_end, *buffer_begin, *buffer_end;
    int64_t* next;
    const int32_t* stop;
};

// Losses and outputs of models on rows of a pool; threads share it and take the next part of the rows from `next`.
struct Evaluation {
    Examples examples;
    const int64_t* rows;
    int64_t count, part;  // rows, and how many of them are taken at a time
    const void *params, *buffers;
    const int64_t* models;
    int64_t model_count;
    void* losses;   // models x rows, or null
    void* outputs;  // models x rows x outputs, or null
    int64_t* next;
    const int32_t* stop;
};

// The loss of one model on one minibatch in training mode, and its gradient.
struct Slope {
    Examples examples;
    const int64_t* rows;
    int64_t count;
    const void *params, *buffers;
    uint64_t dropout_seed;
    void* gradient;
    double* loss;
};
}
