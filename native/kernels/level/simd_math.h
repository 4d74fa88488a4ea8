// Transcendental functions on Vec, the same formulas at every level. Included by simd.h only, inside ingot::INGOT_LEVEL.
// Greatest error against float64 over a 1-in-37 sweep of all float32 values, in ulp of the result (the same within 0.1 at each
// level): exp 1.00, log 0.80, tanh 1.31, sigmoid 2.31, erf 1.15, sin and cos 1.56; silu 2.4 while its result is above 1e-36; mish 4.4
// from -80 on (1 in 397). gelu: 2.0 units in the last place of x, 2.5e-7 for any x between -16 and 8.
// Polynomials: exp, log, tanh, sin, cos after Cephes (S. Moshier); erf after N. Juffa.

/// f(0) to f(N - 1), one after the other in the code. Functions of arrays below go step by step through N vectors: a step that waits for the
/// one before it has the same step of the next vector behind it, and not the rest of its own, which would fill what a processor looks ahead.
template <int N, class F>
INGOT_INLINE void each(const F& f) {
  INGOT_UNROLL for (int i = 0; i < N; ++i) f(i);
}
/// The same of the vectors of a register tile of R rows: f(row, vector).
template <int R, int C, class F>
INGOT_INLINE void each(const F& f) {
  INGOT_UNROLL for (int r = 0; r < R; ++r) {
    INGOT_UNROLL for (int c = 0; c < C; ++c) f(r, c);
  }
}

// e^x. The argument is clamped where the result is infinite or zero anyway (NaN, as second operand, passes).
template <int N>
INGOT_INLINE void exp(Vec (&x)[N]) {
  Vec n[N], p[N];
  each<N>([&](int i) { x[i] = min(broadcast(89.0f), max(broadcast(-104.0f), x[i])); });
  each<N>([&](int i) { n[i] = round_even(x[i] * broadcast(1.44269504088896341f)); });
  each<N>([&](int i) { x[i] = fnma(n[i], broadcast(0.693359375f), x[i]); });  // 9 bits: n times it is exact
  each<N>([&](int i) { x[i] = fnma(n[i], broadcast(-2.12194440e-4f), x[i]); });
  each<N>([&](int i) { p[i] = fma(broadcast(1.9875691500e-4f), x[i], broadcast(1.3981999507e-3f)); });
  each<N>([&](int i) { p[i] = fma(p[i], x[i], broadcast(8.3334519073e-3f)); });
  each<N>([&](int i) { p[i] = fma(p[i], x[i], broadcast(4.1665795894e-2f)); });
  each<N>([&](int i) { p[i] = fma(p[i], x[i], broadcast(1.6666665459e-1f)); });
  each<N>([&](int i) { p[i] = fma(p[i], x[i], broadcast(5.0000001201e-1f)); });
  each<N>([&](int i) { x[i] = fma(p[i], x[i] * x[i], x[i]) + broadcast(1.0f); });
  each<N>([&](int i) { x[i] = ldexp_rounded(x[i], n[i]); });
}
INGOT_INLINE Vec exp(Vec x) {
  Vec one[1] = {x};
  exp(one);
  return one[0];
}

INGOT_INLINE Vec log(Vec x) {
  const Mask tiny = x < broadcast(0x1p-126f);
  const Vec scaled = select(tiny, x * broadcast(0x1p23f), x);
  const Ints word = bits(scaled);
  Vec e = to_float(shift_right<23>(word) - broadcast_int(126)) - select(tiny, broadcast(23.0f), zero());
  Vec m = from_bits((word & broadcast_int(0x7fffff)) | broadcast_int(0x3f000000));  // in [0.5, 1)
  const Mask low = m < broadcast(0.707106781186547524f);
  e = e - select(low, broadcast(1.0f), zero());
  m = (m - broadcast(1.0f)) + select(low, m, zero());
  const Vec z = m * m;
  Vec p = broadcast(7.0376836292e-2f);
  p = fma(p, m, broadcast(-1.1514610310e-1f));
  p = fma(p, m, broadcast(1.1676998740e-1f));
  p = fma(p, m, broadcast(-1.2420140846e-1f));
  p = fma(p, m, broadcast(1.4249322787e-1f));
  p = fma(p, m, broadcast(-1.6668057665e-1f));
  p = fma(p, m, broadcast(2.0000714765e-1f));
  p = fma(p, m, broadcast(-2.4999993993e-1f));
  p = fma(p, m, broadcast(3.3333331174e-1f));
  Vec y = fma(e, broadcast(-2.12194440e-4f), m * z * p);
  y = fnma(broadcast(0.5f), z, y);
  Vec r = fma(e, broadcast(0.693359375f), m + y);
  const Vec infinity = broadcast(__builtin_inff());
  r = select(infinity <= x, infinity, r);
  r = select(x == zero(), negate(infinity), r);
  r = select(x < zero(), broadcast(__builtin_nanf("")), r);
  return select(is_nan(x), x, r);
}

INGOT_INLINE Vec tanh(Vec x) {
  const Vec size = abs(x);
  const Vec z = x * x;
  Vec p = broadcast(-5.70498872745e-3f);
  p = fma(p, z, broadcast(2.06390887954e-2f));
  p = fma(p, z, broadcast(-5.37397155531e-2f));
  p = fma(p, z, broadcast(1.33314422036e-1f));
  p = fma(p, z, broadcast(-3.33332819422e-1f));
  const Vec near = fma(p * z, x, x);
  const Vec far = broadcast(1.0f) - broadcast(2.0f) / (exp(size + size) + broadcast(1.0f));
  return copysign(select(size < broadcast(0.625f), near, far), x);  // the sign of zero too
}

// 1 / (1 + e^-x) without overflow: e^-|x| over (1 + e^-|x|) for negative x keeps the denormal results.
INGOT_INLINE Vec sigmoid(Vec x) {
  const Vec e = exp(from_bits(bits(x) | broadcast_int(INT32_MIN)));
  const Vec one = broadcast(1.0f);
  return select(x < zero(), e, one) / (one + e);
}

INGOT_INLINE Vec silu(Vec x) { return x * sigmoid(x); }  // NaN at -infinity, as torch has it

// x tanh(log(1 + e^x)) = x p / (p + 2) for p = n (n + 2), n = e^x. From 20 on the quotient is 1, and p stays finite.
template <int N>
INGOT_INLINE void mish(Vec (&x)[N]) {
  const Vec two = broadcast(2.0f);
  Vec p[N];
  each<N>([&](int i) { p[i] = min(broadcast(20.0f), x[i]); });  // a NaN, as second operand, passes
  exp(p);
  each<N>([&](int i) { p[i] = p[i] * (p[i] + two); });
  each<N>([&](int i) { p[i] = quotient(p[i], p[i] + two); });
  each<N>([&](int i) { x[i] = x[i] * p[i]; });
}
INGOT_INLINE Vec mish(Vec x) {
  Vec one[1] = {x};
  mish(one);
  return one[0];
}

// The same for a result of 8 bits, within 2^-14 of itself: 1/128 of a step of int8's largest number, 1/64 of one of uint8's. 2^t by five
// coefficients (minimax, 2.6e-6), and an estimate of the quotient where a level has one. Of -infinity, the limit 0 is left where mish has NaN, as
// torch does: both are 0 in bytes.
template <int N>
INGOT_INLINE void mish_for_byte(Vec (&x)[N]) {
  const Vec two = broadcast(2.0f);
  Vec t[N], n[N], p[N];
  each<N>([&](int i) { x[i] = max(broadcast(-80.0f), x[i]); });  // below, less than 1e-32 is left of it; a NaN, as second operand, passes
  each<N>([&](int i) { t[i] = min(broadcast(20.0f), x[i]) * broadcast(1.44269504088896341f); });
  each<N>([&](int i) { n[i] = round_even(t[i]); });
  each<N>([&](int i) { t[i] = t[i] - n[i]; });
  each<N>([&](int i) { p[i] = fma(broadcast(9.57009103e-3f), t[i], broadcast(5.59178628e-2f)); });
  each<N>([&](int i) { p[i] = fma(p[i], t[i], broadcast(2.40247458e-1f)); });
  each<N>([&](int i) { p[i] = fma(p[i], t[i], broadcast(6.93121791e-1f)); });
  each<N>([&](int i) { p[i] = fma(p[i], t[i], broadcast(9.99999285e-1f)); });
  each<N>([&](int i) { p[i] = ldexp_rounded(p[i], n[i]); });
  each<N>([&](int i) { p[i] = p[i] * (p[i] + two); });
  each<N>([&](int i) { x[i] = near_quotient(x[i] * p[i], p[i] + two); });
}

INGOT_INLINE Vec erf(Vec x) {
  const Vec t = abs(x);
  const Vec s = x * x;
  Vec p = fma(broadcast(-1.72853470e-5f), t, broadcast(3.83197126e-4f));
  const Vec u = fma(broadcast(-3.88396438e-3f), t, broadcast(2.42546219e-2f));
  p = fma(p, s, u);
  p = fma(p, t, broadcast(-1.06777877e-1f));
  p = fma(p, t, broadcast(-6.34846687e-1f));
  p = fma(p, t, broadcast(-1.28717512e-1f));
  p = fma(p, t, negate(t));
  const Vec far = select(broadcast(4.0f) < t, broadcast(1.0f), broadcast(1.0f) - exp(p));
  Vec q = broadcast(-5.96761703e-4f);
  q = fma(q, s, broadcast(4.99119423e-3f));
  q = fma(q, s, broadcast(-2.67681349e-2f));
  q = fma(q, s, broadcast(1.12819925e-1f));
  q = fma(q, s, broadcast(-3.76125336e-1f));
  q = fma(q, s, broadcast(1.28379166e-1f));
  const Vec near = fma(q, x, x);
  return select(broadcast(0.927734375f) < t, copysign(far, x), near);
}

// x times the Gaussian's distribution function is max(0, x) - |x| S(|x|), where S(t) = erfc(t / sqrt(2)) / 2 falls from 1/2. Its
// logarithm to base 2 is smooth: a polynomial p (minimax in t S(t)); 2^p is that of the fraction, with the whole part added to the
// exponent. From 8 on |x| S(|x|) is below 6e-15 and stays there. max(0, x) is (x + |x|) / 2: NaN at -infinity, as torch has it.
template <int N>
INGOT_INLINE void gelu_each(Vec* x) {
  constexpr float of_log[] = {-5.54104872e-6f, 5.11862127e-5f, -2.09925623e-4f, -1.1801935e-4f, 7.06790155e-3f, -5.25119081e-2f,
                              -4.59200472e-1f, -1.15110624f, -1.0f};
  constexpr float of_power[] = {9.67161916e-3f, 5.55073507e-2f, 2.40222409e-1f, 6.93147004e-1f, 1.0f};
  Vec t[N], p[N], shifted[N], e[N];
  each<N>([&](int i) __attribute__((always_inline)) {
    t[i] = min(broadcast(8.0f), abs(x[i]));  // a NaN, as second operand, passes
    p[i] = broadcast(2.35490845e-7f);
  });
  INGOT_UNROLL for (int c = 0; c < 9; ++c) each<N>([&](int i) __attribute__((always_inline)) { p[i] = fma(p[i], t[i], broadcast(of_log[c])); });
  const Vec magic = broadcast(12582912.0f), half = broadcast(0.5f);  // 1.5 * 2^23: the whole part in the low bits
  each<N>([&](int i) __attribute__((always_inline)) {
    shifted[i] = p[i] + magic;
    p[i] = p[i] - (shifted[i] - magic);
    e[i] = broadcast(1.32645911e-3f);
  });
  INGOT_UNROLL for (int c = 0; c < 5; ++c) each<N>([&](int i) __attribute__((always_inline)) { e[i] = fma(e[i], p[i], broadcast(of_power[c])); });
  each<N>([&](int i) __attribute__((always_inline)) {
    const Vec positive = fma(half, abs(x[i]), half * x[i]);
    x[i] = fnma(t[i], from_bits(bits(e[i]) + shift_left<23>(bits(shifted[i]))), positive);
  });
}

INGOT_INLINE Vec gelu(Vec x) {
  gelu_each<1>(&x);
  return x;
}

// The remainder of x by pi/2 and the quadrant, in float64, good to |x| = 2^20. Lanes beyond take the C library's way.
INGOT_INLINE Vec quarter_turns(Vec x, std::int32_t* quadrant) {
  float lanes[16];
  store(lanes, x);
  for (int i = 0; i < 16; ++i) {
    const double v = lanes[i];
    const double shifted = v * 0.63661977236758134308 + 6755399441055744.0;  // 1.5 * 2^52: the whole part in the low bits
    const double n = shifted - 6755399441055744.0;
    quadrant[i] = (std::int32_t)__builtin_bit_cast(std::int64_t, shifted);
    lanes[i] = (float)((v - n * 1.57079632673412561417e+00) - n * 6.07710050650619224932e-11);  // 33 bits, and the rest
  }
  return load(lanes);
}

INGOT_INLINE Vec sin_shifted(Vec x, std::int32_t shift) {
  std::int32_t quadrant[16];
  const Vec r = quarter_turns(x, quadrant);
  const Vec z = r * r;
  Vec s = fma(broadcast(-1.9515295891e-4f), z, broadcast(8.3321608736e-3f));
  s = fma(s, z, broadcast(-1.6666654611e-1f));
  s = fma(s * z, r, r);
  Vec c = fma(broadcast(2.443315711809948e-5f), z, broadcast(-1.388731625493765e-3f));
  c = fma(c, z, broadcast(4.166664568298827e-2f));
  c = fma(c * z, z, fnma(broadcast(0.5f), z, broadcast(1.0f)));
  Ints q;
  __builtin_memcpy(&q, quadrant, 64);
  q = q + broadcast_int(shift);
  const Mask odd = zero() < to_float(q & broadcast_int(1));
  const Vec value = select(odd, c, s);
  return from_bits(bits(value) + shift_left<30>(q & broadcast_int(2)));  // quadrants 2 and 3 change the sign bit
}

INGOT_INLINE Vec sin(Vec x) {
  const Vec r = sin_shifted(x, 0);
  const Mask usual = abs(x) <= broadcast(1048576.0f);
  if (!any(select(usual, zero(), broadcast(1.0f)) == broadcast(1.0f))) return r;
  float lanes[16];
  store(lanes, x);
  for (int i = 0; i < 16; ++i) lanes[i] = __builtin_sinf(lanes[i]);
  return select(usual, r, load(lanes));
}

INGOT_INLINE Vec cos(Vec x) {
  const Vec r = sin_shifted(x, 1);
  const Mask usual = abs(x) <= broadcast(1048576.0f);
  if (!any(select(usual, zero(), broadcast(1.0f)) == broadcast(1.0f))) return r;
  float lanes[16];
  store(lanes, x);
  for (int i = 0; i < 16; ++i) lanes[i] = __builtin_cosf(lanes[i]);
  return select(usual, r, load(lanes));
}
