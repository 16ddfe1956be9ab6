// The inner products of convolution and linear layers: small tiles of outputs that stay in registers.
//
// Vectors hold examples, so weights are spread and activations are loaded. A tile is `O` outputs by `P` positions, a
// position being one vector of examples at one pixel.
#pragma once

#include <algorithm>
#include <type_traits>

#include "vector.h"

namespace COTERIE_TARGET {

constexpr int TILE_OUTPUTS = REGISTERS == 32 ? 8 : 4;
constexpr int TILE_POSITIONS = REGISTERS == 32 ? 4 : 3;

// How many positions a tile takes: with fewer outputs there are registers for more.
inline int positions_beside(int outputs) {
    return REGISTERS == 32 ? std::min(TILE_POSITIONS, 24 / std::min(outputs, TILE_OUTPUTS)) : TILE_POSITIONS;
}

// out[o][p] = begin[o] + sum_k weights[k * step + o] * from[p][offsets[k]].
template <class Real, int O, int P>
inline void multiply_gathered(
    const VecOf<Real>* const* from, const int32_t* offsets, int count, const Real* weights, size_t step,
    const Real* begin, VecOf<Real>* const* out, const size_t* out_step
) {
    const VecOf<Real>* at[P];
    VecOf<Real> acc[O][P];
    for (int p = 0; p < P; ++p) at[p] = from[p];
    for (int o = 0; o < O; ++o)
        for (int p = 0; p < P; ++p) acc[o][p] = begin ? spread(begin[o]) : VecOf<Real>{};
    for (int k = 0; k < count; ++k, weights += step) {
        VecOf<Real> x[P];
        for (int p = 0; p < P; ++p) x[p] = at[p][offsets[k]];
        for (int o = 0; o < O; ++o) {
            const VecOf<Real> w = spread(weights[o]);
            for (int p = 0; p < P; ++p) acc[o][p] += w * x[p];
        }
    }
    for (int o = 0; o < O; ++o)
        for (int p = 0; p < P; ++p) out[p][out_step[o]] = acc[o][p];
}

// out[o][p] = begin[o] + sum_k weights[o * row + k * step] * from[p][k]: rows of a matrix, or with row 1 its columns.
template <class Real, int O, int P>
inline void multiply_rows(
    const VecOf<Real>* const* from, int count, const Real* weights, size_t row, size_t step, const Real* begin,
    VecOf<Real>* const* out, const size_t* out_step
) {
    const VecOf<Real>* at[P];
    VecOf<Real> acc[O][P];
    for (int p = 0; p < P; ++p) at[p] = from[p];
    for (int o = 0; o < O; ++o)
        for (int p = 0; p < P; ++p) acc[o][p] = begin ? spread(begin[o]) : VecOf<Real>{};
    for (int k = 0; k < count; ++k, weights += step) {
        VecOf<Real> x[P];
        for (int p = 0; p < P; ++p) x[p] = at[p][k];
        for (int o = 0; o < O; ++o) {
            const VecOf<Real> w = spread(weights[o * row]);
            for (int p = 0; p < P; ++p) acc[o][p] += w * x[p];
        }
    }
    for (int o = 0; o < O; ++o)
        for (int p = 0; p < P; ++p) out[p][out_step[o]] = acc[o][p];
}

// The pixels over which two images are correlated: distances between blocks of examples, rows and pixels, in vectors.
struct Walk {
    int blocks, top, bottom, left, right;
    size_t block, row;  // of the slopes, whose pixels are adjacent
    size_t from_block, from_row, from_pixel;
};

// out[o][k] = sum over pixels and examples of slopes[o] * from[k].
template <class Real, int O, int K>
inline void correlate(
    const VecOf<Real>* const* slopes, const VecOf<Real>* const* from, const Walk& walk, Real* out, size_t row
) {
    VecOf<Real> acc[O][K] = {};
    for (int b = 0; b < walk.blocks; ++b)
        for (int y = walk.top; y < walk.bottom; ++y) {
            const VecOf<Real>*g[O], *at[K];
            for (int o = 0; o < O; ++o) g[o] = slopes[o] + b * walk.block + y * walk.row;
            for (int k = 0; k < K; ++k) at[k] = from[k] + b * walk.from_block + y * walk.from_row;
            for (int x = walk.left; x < walk.right; ++x) {
                VecOf<Real> slope[O];
                for (int o = 0; o < O; ++o) slope[o] = g[o][x];
                for (int k = 0; k < K; ++k) {
                    const VecOf<Real> value = at[k][x * walk.from_pixel];
                    for (int o = 0; o < O; ++o) acc[o][k] += slope[o] * value;
                }
            }
        }
    for (int o = 0; o < O; ++o)
        for (int k = 0; k < K; ++k) out[o * row + k] = sum<Real>(acc[o][k]);
}

// Calls `work` with the numbers of a tile as constants, so that the compiler keeps it in registers.
template <int Most, class Work>
inline void with_constant(int number, Work&& work) {
    if constexpr (Most > 1) {
        if (number < Most) return with_constant<Most - 1>(number, work);
    }
    work(std::integral_constant<int, Most>{});
}

// Divides `count` into parts of at most `most` that differ by one at most, and calls work(begin, size) for each.
template <class Work>
inline void in_parts(int count, int most, Work&& work) {
    const int parts = (count + most - 1) / most;
    for (int i = 0; i < parts; ++i) {
        const int begin = int(int64_t(count) * i / parts), end = int(int64_t(count) * (i + 1) / parts);
        work(begin, end - begin);
    }
}

}  // namespace COTERIE_TARGET
