// Discrete Fourier transforms for one level: 16 rows in a vector, so that every radix and every length has the same code.
//
// The stages are Stockham's: each writes in the order in which the next one reads, so that nothing is permuted at the end. With s
// sums done, stage r of n points turns x[q + s (p + t n/r)], t < r, into y[q + s (r p + u)] = w_n^(p u) sum over t of w_r^(t u) x[...].
// A backward transform is the forward one with real and imaginary parts exchanged before and behind it.
#include "fft.h"

#include "simd.h"
#include "transpose.h"
#include "typed.h"

namespace ingot::INGOT_LEVEL {

namespace {

struct Complex {
  Vec re, im;
};

INGOT_INLINE Complex at(const float* p, std::int64_t i) { return {load(p + 2 * kLanes * i), load(p + 2 * kLanes * i + kLanes)}; }
INGOT_INLINE void put(float* p, std::int64_t i, Complex c) {
  store(p + 2 * kLanes * i, c.re);
  store(p + 2 * kLanes * i + kLanes, c.im);
}
INGOT_INLINE Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
INGOT_INLINE Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
INGOT_INLINE Complex minus_i(Complex a) { return {a.im, -a.re}; }  // -i a
INGOT_INLINE Complex scaled(Complex a, float by) { return {a.re * broadcast(by), a.im * broadcast(by)}; }
/// c + a * by.
INGOT_INLINE Complex plus_scaled(Complex c, Complex a, float by) {
  return {fma(a.re, broadcast(by), c.re), fma(a.im, broadcast(by), c.im)};
}
/// c times a number of a table.
INGOT_INLINE Complex times(Complex c, const float* w) {
  const Vec re = broadcast(w[0]), im = broadcast(w[1]);
  return {fnma(c.im, im, c.re * re), fma(c.im, re, c.re * im)};
}
INGOT_INLINE Complex swapped(Complex c) { return {c.im, c.re}; }

// ---- stages ----

INGOT_INLINE void sums_of_2(const Complex* a, Complex* b) {
  b[0] = a[0] + a[1];
  b[1] = a[0] - a[1];
}

INGOT_INLINE void sums_of_3(const Complex* a, Complex* b) {
  constexpr float kSin = 0.86602540378443864676f;
  const Complex sum = a[1] + a[2], turned = minus_i(scaled(a[1] - a[2], kSin)), middle = plus_scaled(a[0], sum, -0.5f);
  b[0] = a[0] + sum;
  b[1] = middle + turned;
  b[2] = middle - turned;
}

INGOT_INLINE void sums_of_4(const Complex* a, Complex* b) {
  const Complex even = a[0] + a[2], odd = a[1] + a[3], across = a[0] - a[2], turned = minus_i(a[1] - a[3]);
  b[0] = even + odd;
  b[1] = across + turned;
  b[2] = even - odd;
  b[3] = across - turned;
}

INGOT_INLINE void sums_of_5(const Complex* a, Complex* b) {
  constexpr float kCos1 = 0.30901699437494742410f, kCos2 = -0.80901699437494742410f;
  constexpr float kSin1 = 0.95105651629515357212f, kSin2 = 0.58778525229247312917f;
  const Complex sum1 = a[1] + a[4], sum2 = a[2] + a[3], off1 = a[1] - a[4], off2 = a[2] - a[3];
  const Complex middle1 = plus_scaled(plus_scaled(a[0], sum1, kCos1), sum2, kCos2);
  const Complex middle2 = plus_scaled(plus_scaled(a[0], sum1, kCos2), sum2, kCos1);
  const Complex turned1 = minus_i(plus_scaled(scaled(off1, kSin1), off2, kSin2));
  const Complex turned2 = minus_i(plus_scaled(scaled(off1, kSin2), off2, -kSin1));
  b[0] = a[0] + sum1 + sum2;
  b[1] = middle1 + turned1;
  b[2] = middle2 + turned2;
  b[3] = middle2 - turned2;
  b[4] = middle1 - turned1;
}

template <int radix, class Sums>
INGOT_INLINE void run_stage(const FftStage& stage, std::int64_t m, std::int64_t s, const float* x, float* y, const Sums& sums) {
  for (std::int64_t p = 0; p < m; ++p) {
    const float* const w = stage.twiddles + 2 * (radix - 1) * p;
    for (std::int64_t q = 0; q < s; ++q) {
      Complex a[radix], b[radix];
      for (int t = 0; t < radix; ++t) a[t] = at(x, q + s * (p + m * t));
      sums(a, b);
      put(y, q + s * radix * p, b[0]);
      for (int u = 1; u < radix; ++u) put(y, q + s * (radix * p + u), p == 0 ? b[u] : times(b[u], w + 2 * (u - 1)));
    }
  }
}

/// Of an odd prime: pairs of points that lie opposite share their cosines, and their sines but for the sign.
void run_odd_stage(const FftStage& stage, std::int64_t m, std::int64_t s, const float* x, float* y) {
  const int radix = stage.radix, half = radix / 2;
  Complex sum[kMostRadix / 2], off[kMostRadix / 2];
  for (std::int64_t p = 0; p < m; ++p) {
    const float* const w = stage.twiddles + 2 * (radix - 1) * p;
    for (std::int64_t q = 0; q < s; ++q) {
      const Complex first = at(x, q + s * p);
      Complex total = first;
      for (int t = 1; t <= half; ++t) {
        const Complex near = at(x, q + s * (p + m * t)), far = at(x, q + s * (p + m * (radix - t)));
        sum[t - 1] = near + far, off[t - 1] = near - far;
        total = total + sum[t - 1];
      }
      float* const to = y + 2 * kLanes * (q + s * radix * p);
      put(to, 0, total);
      for (int u = 1; u <= half; ++u) {
        Complex middle = first, turned = {zero(), zero()};
        for (int t = 1; t <= half; ++t) {
          const float* const root = stage.roots + 2 * (t * u % radix);  // its imaginary part is -sin
          middle = plus_scaled(middle, sum[t - 1], root[0]);
          turned = plus_scaled(turned, off[t - 1], -root[1]);
        }
        turned = minus_i(turned);
        const Complex one = middle + turned, other = middle - turned;
        put(to, s * u, p == 0 ? one : times(one, w + 2 * (u - 1)));
        put(to, s * (radix - u), p == 0 ? other : times(other, w + 2 * (radix - u - 1)));
      }
    }
  }
}

/// Transforms what is in a; gives the one of both that it is in afterwards.
float* run_stages(const FftPlan& plan, float* a, float* b) {
  std::int64_t m = plan.padded, s = 1;
  for (int i = 0; i < plan.stage_count; ++i) {
    const FftStage& stage = plan.stages[i];
    m /= stage.radix;
    if (stage.radix == 4)
      run_stage<4>(stage, m, s, a, b, sums_of_4);
    else if (stage.radix == 2)
      run_stage<2>(stage, m, s, a, b, sums_of_2);
    else if (stage.radix == 3)
      run_stage<3>(stage, m, s, a, b, sums_of_3);
    else if (stage.radix == 5)
      run_stage<5>(stage, m, s, a, b, sums_of_5);
    else
      run_odd_stage(stage, m, s, a, b);
    s *= stage.radix;
    float* const next = a;
    a = b, b = next;
  }
  return a;
}

/// The same of any length: Bluestein's way, with k j = (k^2 + j^2 - (k - j)^2) / 2, is a convolution with a chirp.
float* transform(const FftPlan& plan, float* a, float* b) {
  if (plan.chirp == nullptr) return run_stages(plan, a, b);
  for (std::int64_t k = 0; k < plan.points; ++k) put(a, k, times(at(a, k), plan.chirp + 2 * k));
  for (std::int64_t k = plan.points; k < plan.padded; ++k) put(a, k, {zero(), zero()});
  float* found = run_stages(plan, a, b);
  for (std::int64_t k = 0; k < plan.padded; ++k) put(found, k, swapped(times(at(found, k), plan.spectrum + 2 * k)));
  found = run_stages(plan, found, found == a ? b : a);
  for (std::int64_t k = 0; k < plan.points; ++k) put(found, k, times(swapped(at(found, k)), plan.chirp + 2 * k));
  return found;
}

// ---- rows in and out ----

/// Reads `count` elements of each row, which lie one behind the other; element k of all rows goes to y + 16 * spread * k.
template <class T>
INGOT_INLINE void read_dense(const FftJob& job, std::int64_t count, int spread, float* y) {
  for (std::int64_t k = 0; k < count; k += kLanes) {
    Vec x[kFftRows];
    for (int row = 0; row < kFftRows; ++row) x[row] = load_tail((const T*)job.x[row < job.rows ? row : 0], k, count);
    float* const to = y + kLanes * spread * k;
    if (spread == 1 && count - k >= kLanes) {
      transpose(x, to);
      continue;
    }
    float block[kLanes * kLanes];
    transpose(x, block);
    for (int i = 0; i < kLanes && k + i < count; ++i) store(to + kLanes * spread * i, load(block + kLanes * i));
  }
}

/// Reads `count` numbers of each row, the parts of a pair `pair` apart, into [count, 2, 16]; zeros from there to `points`.
template <class T>
INGOT_INLINE void read_pairs(const FftJob& job, std::int64_t step, std::int64_t pair, std::int64_t count, std::int64_t points, float* a) {
  if (step == 2 && pair == 1) {
    read_dense<T>(job, 2 * count, 1, a);
  } else {
    for (int row = 0; row < kLanes; ++row) {
      const T* x = (const T*)job.x[row < job.rows ? row : 0];
      for (std::int64_t k = 0; k < count; ++k, x += step) {
        a[2 * kLanes * k + row] = load_one(x);
        a[2 * kLanes * k + kLanes + row] = load_one(x + pair);
      }
    }
  }
  for (std::int64_t k = count; k < points; ++k) put(a, k, {zero(), zero()});
}

/// The same of numbers without an imaginary part.
template <class T>
INGOT_INLINE void read_reals(const FftJob& job, float* a) {
  if (job.x_step == 1) {
    read_dense<T>(job, job.n, 2, a);
  } else {
    for (int row = 0; row < kLanes; ++row) {
      const T* x = (const T*)job.x[row < job.rows ? row : 0];
      for (std::int64_t k = 0; k < job.n; ++k, x += job.x_step) a[2 * kLanes * k + row] = load_one(x);
    }
  }
  for (std::int64_t k = 0; k < job.n; ++k) store(a + 2 * kLanes * k + kLanes, zero());
}

/// Writes results, the first one first. Those that lie one behind the other in their rows are written 16 at a time.
template <class T>
struct Writer {
  const FftJob& job;
  std::int64_t written = 0;  // elements of each row
  int held = 0;              // vectors in `block`
  alignas(64) float block[kLanes * kLanes];

  explicit Writer(const FftJob& of) : job(of) {}

  /// Number k of each row, where rows are pairs.
  void pair(std::int64_t k, Complex c) {
    const Vec re = c.re * broadcast(job.scale), im = c.im * broadcast(job.scale);
    if (job.y_step == 2 && job.y_pair == 1 && k * 2 == written + held) {
      hold(re);
      hold(im);
    } else {
      spread(k * job.y_step, re);
      spread(k * job.y_step + job.y_pair, im);
    }
  }

  /// Number k of each row, where rows are real.
  void real(std::int64_t k, Vec v) {
    if (job.y_step == 1)
      hold(v * broadcast(job.scale));
    else
      spread(k * job.y_step, v * broadcast(job.scale));
  }

  void flush() {
    Vec x[kLanes];
    float rows[kLanes * kLanes];
    for (int i = 0; i < kLanes; ++i) x[i] = i < held ? load(block + kLanes * i) : zero();
    transpose(x, rows);
    for (int row = 0; row < job.rows; ++row) store_tail((T*)job.y[row], written, written + held, load(rows + kLanes * row));
    written += held;
    held = 0;
  }

 private:
  void hold(Vec v) {
    store(block + kLanes * held, v);
    if (++held == kLanes) flush();
  }
  void spread(std::int64_t at, Vec v) {
    float lanes[kLanes];
    store(lanes, v);
    for (int row = 0; row < job.rows; ++row) store_one((T*)job.y[row] + at, lanes[row]);
  }
};

template <class T>
void run_complex(const FftJob& job) {
  const FftPlan& plan = *job.plan;
  read_pairs<T>(job, job.x_step, job.x_pair, job.n, job.n, job.a);
  if (job.inverse)
    for (std::int64_t k = 0; k < job.n; ++k) put(job.a, k, swapped(at(job.a, k)));
  const float* const found = transform(plan, job.a, job.b);
  Writer<T> writer(job);
  for (std::int64_t k = 0; k < job.n; ++k) writer.pair(k, job.inverse ? swapped(at(found, k)) : at(found, k));
  writer.flush();
}

/// Writes number k of a spectrum, and with all wanted its conjugate, which is number n - k.
template <class T>
INGOT_INLINE void write_bin(Writer<T>& writer, std::int64_t k, Complex c) {
  writer.pair(k, c);
  const FftJob& job = writer.job;
  if (k > 0 && job.n - k < job.wanted && 2 * k != job.n) writer.pair(job.n - k, {c.re, -c.im});
}

/// Real numbers of an even count are as many complex ones as half of it: z = even + i odd, and
/// X[k] = (Z[k] + Z*[-k]) / 2 - i w^k (Z[k] - Z*[-k]) / 2.
template <class T>
void run_to_spectrum(const FftJob& job) {
  const FftPlan& plan = *job.plan;
  Writer<T> writer(job);
  if (plan.halves == nullptr) {
    read_reals<T>(job, job.a);
    float* const found = transform(plan, job.a, job.b);
    store(found + kLanes, zero());  // number 0 is a sum of real ones, which a convolution rounds
    for (std::int64_t k = 0; k <= job.n / 2; ++k) write_bin(writer, k, at(found, k));
    writer.flush();
    return;
  }
  const std::int64_t points = plan.points;
  read_pairs<T>(job, 2 * job.x_step, job.x_step, points, points, job.a);
  const float* const found = transform(plan, job.a, job.b);
  for (std::int64_t k = 0; k <= points; ++k) {
    const Complex near = at(found, k == points ? 0 : k), far = at(found, k == 0 ? 0 : points - k);
    const Complex conjugate = {far.re, -far.im};
    const Complex half = scaled(near + conjugate, 0.5f), other = minus_i(scaled(near - conjugate, 0.5f));
    write_bin(writer, k, half + times(other, plan.halves + 2 * k));
  }
  writer.flush();
}

/// The way back: z = (X[k] + X*[n/2 - k]) + i w^-k (X[k] - X*[n/2 - k]). Imaginary parts of numbers that are their own conjugates
/// do not count.
template <class T>
void run_from_spectrum(const FftJob& job) {
  const FftPlan& plan = *job.plan;
  const std::int64_t bins = job.n / 2 + 1;
  Writer<T> writer(job);
  float* const x = plan.halves == nullptr ? job.a : job.b;
  read_pairs<T>(job, job.x_step, job.x_pair, job.given < bins ? job.given : bins, bins, x);
  store(x + kLanes, zero());
  if (plan.halves == nullptr) {
    for (std::int64_t k = 1; k < bins; ++k) {
      const Complex c = at(x, k);
      put(x, k, swapped(c));
      put(x, job.n - k, swapped({c.re, -c.im}));
    }
    put(x, 0, swapped(at(x, 0)));
    const float* const found = transform(plan, x, job.b);
    for (std::int64_t k = 0; k < job.n; ++k) writer.real(k, at(found, k).im);
    writer.flush();
    return;
  }
  const std::int64_t points = plan.points;
  store(x + 2 * kLanes * points + kLanes, zero());
  for (std::int64_t k = 0; k < points; ++k) {
    const Complex near = at(x, k), far = at(x, points - k), conjugate = {far.re, -far.im};
    const Complex other = near - conjugate;
    const float back[2] = {plan.halves[2 * k], -plan.halves[2 * k + 1]};
    put(job.a, k, swapped(near + conjugate - minus_i(times(other, back))));
  }
  const float* const found = transform(plan, job.a, job.b);
  for (std::int64_t k = 0; k < points; ++k) {
    const Complex c = at(found, k);
    writer.real(2 * k, c.im);
    writer.real(2 * k + 1, c.re);
  }
  writer.flush();
}

void run(const FftJob& job) {
  with_floats(job.dtype, job.x[0], [&]<class T>(const T*) {
    if (job.kind == FftKind::complex)
      run_complex<T>(job);
    else if (job.kind == FftKind::to_spectrum)
      run_to_spectrum<T>(job);
    else
      run_from_spectrum<T>(job);
  });
}

}  // namespace

const FftTable fft_table = {run};

}  // namespace ingot::INGOT_LEVEL
