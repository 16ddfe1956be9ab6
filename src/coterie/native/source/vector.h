// A vector of examples: lane b of every vector belongs to example b of a minibatch.
//
// The width is that of the instruction set for which the file is compiled; GCC's and Clang's vector types need no
// intrinsics, so one source serves all of them. COTERIE_BYTES is the width in bytes.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#ifndef COTERIE_BYTES
#define COTERIE_BYTES 16
#endif

namespace COTERIE_TARGET {

#if COTERIE_BYTES == 64
constexpr int REGISTERS = 32;
#else
constexpr int REGISTERS = 16;
#endif

template <class Real>
struct Lanes;

template <>
struct Lanes<float> {
    typedef float Vec __attribute__((vector_size(COTERIE_BYTES)));
    typedef float Loose __attribute__((vector_size(COTERIE_BYTES), aligned(4), may_alias));
    typedef int32_t Int __attribute__((vector_size(COTERIE_BYTES)));
};

template <>
struct Lanes<double> {
    typedef double Vec __attribute__((vector_size(COTERIE_BYTES)));
    typedef double Loose __attribute__((vector_size(COTERIE_BYTES), aligned(8), may_alias));
    typedef int64_t Int __attribute__((vector_size(COTERIE_BYTES)));
};

template <class Real>
using VecOf = typename Lanes<Real>::Vec;

template <class Real>
using IntOf = typename Lanes<Real>::Int;

template <class Real>
constexpr int WIDTH = COTERIE_BYTES / sizeof(Real);

// Every lane the same number. Nothing is taken away, which compilers leave out; adding nothing would change -0.
template <class Real>
inline VecOf<Real> spread(Real value) {
    return value - VecOf<Real>{};
}

// A vector at an address that need not be aligned.
template <class Real>
inline VecOf<Real> load(const Real* from) {
    return *reinterpret_cast<const typename Lanes<Real>::Loose*>(from);
}

template <class Real>
inline void store(Real* to, VecOf<Real> value) {
    *reinterpret_cast<typename Lanes<Real>::Loose*>(to) = value;
}

// The first `count` lanes alone; the others are zero, and are not read.
template <class Real>
inline VecOf<Real> load_some(const Real* from, int count) {
    VecOf<Real> value{};
    std::memcpy(&value, from, count * sizeof(Real));
    return value;
}

template <class Real>
inline void store_some(Real* to, VecOf<Real> value, int count) {
    std::memcpy(to, &value, count * sizeof(Real));
}

// The sum of all lanes, in halves: the same order on every call.
template <class Real>
inline Real sum(VecOf<Real> value) {
    Real part[WIDTH<Real>];
    std::memcpy(part, &value, sizeof value);
    for (int half = WIDTH<Real> / 2; half; half /= 2)
        for (int i = 0; i < half; ++i) part[i] += part[i + half];
    return part[0];
}

template <class Real>
inline VecOf<Real> larger(VecOf<Real> a, VecOf<Real> b) {
    return a > b ? a : b;
}

template <class Real>
inline VecOf<Real> square_root(VecOf<Real> value) {
    VecOf<Real> root;
    for (int i = 0; i < WIDTH<Real>; ++i) root[i] = std::sqrt(value[i]);
    return root;
}

// One stage of a transposition: entries whose place has the bit `Step` set change sides.
template <int Step, class Vec, size_t... Place>
inline void exchange(Vec& a, Vec& b, std::index_sequence<Place...>) {
    constexpr int width = int(sizeof...(Place));
    const Vec low = __builtin_shufflevector(a, b, (int(Place) & Step ? int(Place) - Step + width : int(Place))...);
    b = __builtin_shufflevector(a, b, (int(Place) & Step ? int(Place) + width : int(Place) + Step)...);
    a = low;
}

// Transposes a square of as many vectors as each has lanes.
template <class Real, int Step = WIDTH<Real> / 2>
inline void transpose(VecOf<Real> (&square)[WIDTH<Real>]) {
    for (int i = 0; i < WIDTH<Real>; ++i)
        if (!(i & Step)) exchange<Step>(square[i], square[i + Step], std::make_index_sequence<size_t(WIDTH<Real>)>{});
    if constexpr (Step > 1) transpose<Real, Step / 2>(square);
}

// exp of numbers <= 0, as a softmax needs it. In double precision it is the library's.
inline VecOf<double> exp_below(VecOf<double> x) {
    VecOf<double> found;
    for (int i = 0; i < WIDTH<double>; ++i) found[i] = std::exp(x[i]);
    return found;
}

// In single precision: 2^n * exp(r) with |r| <= ln(2) / 2, a polynomial of degree 6, error below 2 units in the last
// place; below -87 it is 0, and of what is no number it is no number.
inline VecOf<float> exp_below(VecOf<float> x) {
    typedef VecOf<float> Vec;
    typedef IntOf<float> Int;
    const Vec lowest = spread(-87.0f), magic = spread(12582912.0f);
    const Vec clipped = x < lowest ? lowest : x;
    const Vec shifted = clipped * 1.44269504088896341f + magic;
    const Vec n = shifted - magic;
    const Vec r = clipped - n * 0.693359375f + n * 2.12194440e-4f;
    Vec p = spread(1.3981999507e-3f);
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * r) * r + r + 1.0f;
    const Int bits = ((Int)shifted - (Int)magic + 127) << 23;
    const Vec found = p * (Vec)bits;
    const Vec low = x < lowest ? Vec{} : found;
    return x == x ? low : x;
}

// log of numbers >= 1, such as the sum of a softmax. In double precision it is the library's.
inline VecOf<double> log_above(VecOf<double> x) {
    VecOf<double> found;
    for (int i = 0; i < WIDTH<double>; ++i) found[i] = std::log(x[i]);
    return found;
}

// In single precision: n ln(2) + log(1 + r) with sqrt(1/2) <= 1 + r < sqrt(2), a polynomial of degree 8.
inline VecOf<float> log_above(VecOf<float> x) {
    typedef VecOf<float> Vec;
    typedef IntOf<float> Int;
    const Int bits = (Int)x;
    Int power = (bits >> 23) - 126;
    Vec m = (Vec)((bits & 0x007fffff) | 0x3f000000);  // in [0.5, 1)
    const Int small = m < 0.707106781186547524f;
    m = small ? m + m : m;
    power += small;  // all bits of a true lane are set: minus one
    const Vec r = m - 1.0f, square = r * r, n = __builtin_convertvector(power, Vec);
    Vec p = spread(7.0376836292e-2f);
    p = p * r - 1.1514610310e-1f;
    p = p * r + 1.1676998740e-1f;
    p = p * r - 1.2420140846e-1f;
    p = p * r + 1.4249322787e-1f;
    p = p * r - 1.6668057665e-1f;
    p = p * r + 2.0000714765e-1f;
    p = p * r - 2.4999993993e-1f;
    p = p * r + 3.3333331174e-1f;
    const Vec found = r * square * p + n * -2.12194440e-4f - 0.5f * square + r + n * 0.693359375f;
    return (x == x) & (x < std::numeric_limits<float>::infinity()) ? found : x;
}

}  // namespace COTERIE_TARGET
