// The transforms of Winograd convolutions (winograd.h) on vectors. Included by winograd.cpp only.
#pragma once

#include "simd.h"

namespace ingot::INGOT_LEVEL {

namespace {

// The interpolation points other than 0 and infinity are ±kNear and ±kFar.
constexpr float kNear = 5.0f / 8, kFar = 3.0f / 2;
constexpr float kNear2 = kNear * kNear, kFar2 = kFar * kFar;

// The transforms of F(4x4, 3x3) go by pairs of rows, so that what lies between their two passes stays in registers.
enum Pair { kEnds, kNears, kFars };  // rows 0 and 5, 1 and 2, 3 and 4 of Bᵀ

/// Two rows of Bᵀ times a column of six.
template <Pair P>
INGOT_INLINE void transform_input(const Vec (&d)[6], Vec& first, Vec& second) {
  if constexpr (P == kEnds) {
    const Vec sum = broadcast(kNear2 + kFar2), product = broadcast(kNear2 * kFar2);
    first = fma(product, d[0], fnma(sum, d[2], d[4]));
    second = fma(product, d[1], fnma(sum, d[3], d[5]));
  } else {
    const Vec point = broadcast(P == kNears ? kNear : kFar), other2 = broadcast(P == kNears ? kFar2 : kNear2);
    const Vec even = fnma(other2, d[2], d[4]), odd = fnma(other2, d[1], d[3]);
    first = fma(point, odd, even);
    second = fnma(point, odd, even);
  }
}

INGOT_INLINE void transform_input(const Vec (&d)[6], Vec (&v)[6]) {
  transform_input<kEnds>(d, v[0], v[5]);
  transform_input<kNears>(d, v[1], v[2]);
  transform_input<kFars>(d, v[3], v[4]);
}

/// Rows 0 and 2 (Odd: 1 and 3) of Aᵀ times a column of six.
template <bool Odd>
INGOT_INLINE void transform_output(const Vec (&m)[6], Vec& first, Vec& second) {
  if constexpr (Odd) {
    const Vec near = m[1] - m[2], far = m[3] - m[4];
    first = fma(broadcast(kFar), far, broadcast(kNear) * near);
    second = fma(broadcast(kFar2 * kFar), far, fma(broadcast(kNear2 * kNear), near, m[5]));
  } else {
    const Vec near = m[1] + m[2], far = m[3] + m[4];
    first = m[0] + near + far;
    second = fma(broadcast(kFar2), far, broadcast(kNear2) * near);
  }
}

// The transforms of F(2x2, 3x3) and F(2, 3), whose points are 0, ±1 and infinity.

INGOT_INLINE void transform_input(const Vec (&d)[4], Vec (&v)[4]) {
  v[0] = d[0] - d[2];
  v[1] = d[1] + d[2];
  v[2] = d[2] - d[1];
  v[3] = d[3] - d[1];
}

INGOT_INLINE void transform_output(const Vec (&m)[4], Vec (&y)[2]) {
  y[0] = m[0] + m[1] + m[2];
  y[1] = m[1] - m[2] + m[3];
}

// The transforms of F(4, 5), whose points are 0, ±1/2, ±1, ±2 and infinity.

/// Rows of Bᵀ for a point and its opposite, from their even and odd halves.
INGOT_INLINE void transform_input(const Vec (&d)[8], Vec (&v)[8]) {
  const auto half = [](Vec low, Vec middle, Vec high, float product, float sum) {
    return fma(broadcast(product), low, fnma(broadcast(sum), middle, high));
  };
  const Vec ends = broadcast(5.25f);  // the points' squares added up, and multiplied two by two and added up
  v[0] = fma(ends, d[4] - d[2], d[0] - d[6]);
  v[7] = fma(ends, d[3] - d[5], d[7] - d[1]);
  const Vec near_even = half(d[2], d[4], d[6], 4.0f, 5.0f), near_odd = half(d[1], d[3], d[5], 4.0f, 5.0f);
  v[1] = fma(broadcast(0.5f), near_odd, near_even);
  v[2] = fnma(broadcast(0.5f), near_odd, near_even);
  const Vec even = half(d[2], d[4], d[6], 1.0f, 4.25f), odd = half(d[1], d[3], d[5], 1.0f, 4.25f);
  v[3] = even + odd;
  v[4] = even - odd;
  const Vec far_even = half(d[2], d[4], d[6], 0.25f, 1.25f), far_odd = half(d[1], d[3], d[5], 0.25f, 1.25f);
  v[5] = fma(broadcast(2.0f), far_odd, far_even);
  v[6] = fnma(broadcast(2.0f), far_odd, far_even);
}

INGOT_INLINE void transform_output(const Vec (&m)[8], Vec (&y)[4]) {
  const Vec near = m[1] + m[2], one = m[3] + m[4], far = m[5] + m[6];
  const Vec near_odd = m[1] - m[2], one_odd = m[3] - m[4], far_odd = m[5] - m[6];
  y[0] = m[0] + near + one + far;
  y[1] = fma(broadcast(0.5f), near_odd, fma(broadcast(2.0f), far_odd, one_odd));
  y[2] = fma(broadcast(0.25f), near, fma(broadcast(4.0f), far, one));
  y[3] = fma(broadcast(0.125f), near_odd, fma(broadcast(8.0f), far_odd, one_odd + m[7]));
}

// The transforms of F(4x4, 2x2) and F(4, 2), whose points are 0, 1/2, -1, 2 and infinity.

INGOT_INLINE void transform_input(const Vec (&d)[5], Vec (&v)[5]) {
  const Vec ends = broadcast(1.5f), middle = d[1] + d[2];
  v[0] = fnma(ends, middle, d[0] + d[3]);
  v[1] = fnma(broadcast(2.0f), d[1], d[3] - d[2]);
  v[2] = fnma(broadcast(2.5f), d[2], d[1] + d[3]);
  v[3] = fma(broadcast(0.5f), d[2] - d[1], d[3]);
  v[4] = fnma(ends, d[2] + d[3], d[1] + d[4]);
}

INGOT_INLINE void transform_output(const Vec (&m)[5], Vec (&y)[4]) {
  y[0] = (m[0] + m[1]) + (m[2] + m[3]);
  y[1] = fma(broadcast(2.0f), m[3], fma(broadcast(0.5f), m[1], zero() - m[2]));
  y[2] = fma(broadcast(4.0f), m[3], fma(broadcast(0.25f), m[1], m[2]));
  y[3] = fma(broadcast(8.0f), m[3], fma(broadcast(0.125f), m[1], m[4] - m[2]));
}

// G. Row p is the powers of p over the product of p's distances to the other points; the last one, for infinity, is (0, ..., 0, 1).
// Where the product is negative for 0, the signs of the first rows of G and of Bᵀ are turned.

constexpr double kOfZero = kNear2 * kFar2, kOfNear = 2 * kNear2 * (kNear2 - kFar2), kOfFar = 2 * kFar2 * (kFar2 - kNear2);
constexpr double kSquare4Weights[6][3] = {{1 / kOfZero, 0, 0},
                                          {1 / kOfNear, kNear / kOfNear, kNear2 / kOfNear},
                                          {1 / kOfNear, -kNear / kOfNear, kNear2 / kOfNear},
                                          {1 / kOfFar, kFar / kOfFar, kFar2 / kOfFar},
                                          {1 / kOfFar, -kFar / kOfFar, kFar2 / kOfFar},
                                          {0, 0, 1}};
constexpr double kTwoWeights[4][3] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};
constexpr double kHalf = 1 / 1.40625, kOne = 1 / -4.5, kTwo = 1 / 90.0;
constexpr double kLine4Weights[8][5] = {{1, 0, 0, 0, 0},
                                       {kHalf, kHalf / 2, kHalf / 4, kHalf / 8, kHalf / 16},
                                       {kHalf, -kHalf / 2, kHalf / 4, -kHalf / 8, kHalf / 16},
                                       {kOne, kOne, kOne, kOne, kOne},
                                       {kOne, -kOne, kOne, -kOne, kOne},
                                       {kTwo, 2 * kTwo, 4 * kTwo, 8 * kTwo, 16 * kTwo},
                                       {kTwo, -2 * kTwo, 4 * kTwo, -8 * kTwo, 16 * kTwo},
                                       {0, 0, 0, 0, 1}};
constexpr double kShortWeights[5][2] = {{1, 0}, {-8 / 9.0, -4 / 9.0}, {-2 / 9.0, 2 / 9.0}, {1 / 9.0, 2 / 9.0}, {0, 1}};

}  // namespace

}  // namespace ingot::INGOT_LEVEL
