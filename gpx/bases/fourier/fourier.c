/* Fourier features and their products in one pass over frequencies and rows.

   For each frequency: its angles on a strip of rows, their cosines and sines, and at once every sum
   in which these take part. A strip stays in the first cache; nothing of the size of the feature
   matrix is written unless the caller asks for it. -DDOUBLE for float64. */

#include <math.h>
#include <omp.h>
#include <string.h>

#ifdef DOUBLE
typedef double real;
#define K(x) x
#define FMA fma
#define ROUND rint
#define FLOOR floor
/* pi / 2 in two parts; polynomials on [-pi/4, pi/4] of the Cephes library */
#define HALF_PI_HIGH 1.5707963267948966
#define HALF_PI_LOW 6.123233995736766e-17
#define SIN(z)                                                                                  \
    FMA(FMA(FMA(FMA(FMA(1.58962301576546568060e-10, z, -2.50507477628578072866e-8), z,          \
                    2.75573136213857245213e-6), z, -1.98412698295895385996e-4), z,              \
            8.33333333332211858878e-3), z, -1.66666666666666307295e-1)
#define COS(z)                                                                                  \
    FMA(FMA(FMA(FMA(FMA(-1.13585365213876817300e-11, z, 2.08757008419747316778e-9), z,          \
                    -2.75573141792967388112e-7), z, 2.48015872888517045348e-5), z,              \
            -1.38888888888730564116e-3), z, 4.16666666666665929218e-2)
#else
typedef float real;
#define K(x) x##f
#define FMA fmaf
#define ROUND rintf
#define FLOOR floorf
#define HALF_PI_HIGH 1.57079637050628662109375f
#define HALF_PI_LOW (-4.37113900018624283e-8f)
#define SIN(z) FMA(FMA(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f)
#define COS(z) FMA(FMA(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f)
#endif

enum { STRIP = 512, MOST = 32 };

/* angles (n,) of one frequency w (d,) at inputs x (d, stride) */
static void project(long n, long d, long stride, const real *restrict x, const real *restrict w,
                    real *restrict angle) {
    for (long i = 0; i < n; i++) angle[i] = 0;
    long k = 0;
    for (; k + 4 <= d; k += 4) {
        const real *restrict p = x + k * stride, *restrict q = p + stride;
        const real *restrict r = q + stride, *restrict s = r + stride;
        const real a = w[k], b = w[k + 1], c = w[k + 2], e = w[k + 3];
        for (long i = 0; i < n; i++)
            angle[i] = FMA(e, s[i], FMA(c, r[i], FMA(b, q[i], FMA(a, p[i], angle[i]))));
    }
    for (; k < d; k++)
        for (long i = 0; i < n; i++) angle[i] = FMA(w[k], x[k * stride + i], angle[i]);
}

/* Error below 1.5 units in the last place of one while |angle| < 1e4 (1e6 in float64), bounded by
   one beyond; nan and infinity give nan. */
static void wave(long n, real scale, const real *restrict angle, real *restrict cosine,
                 real *restrict sine) {
    for (long i = 0; i < n; i++) {
        const real turns = ROUND(angle[i] * K(0.63661977236758134308));
        real r = FMA(turns, -HALF_PI_HIGH, angle[i]);
        r = FMA(turns, -HALF_PI_LOW, r);
        r = r > K(0.79) ? K(0.79) : r;
        r = r < K(-0.79) ? K(-0.79) : r;
        const real z = r * r;
        const real s = FMA(r * z, SIN(z), r);
        const real c = FMA(z * z, COS(z), FMA(z, K(-0.5), K(1.0)));
        const real quarter = FMA(FLOOR(turns * K(0.25)), K(-4.0), turns); /* 0, 1, 2 or 3 */
        const int swap = quarter == K(1.0) || quarter == K(3.0);
        const real first = swap ? c : s, second = swap ? s : c;
        sine[i] = scale * (quarter > K(1.5) ? -first : first);
        cosine[i] = scale * (quarter == K(1.0) || quarter == K(2.0) ? -second : second);
    }
}

/* Sums of k directions u (k, stride) times cosines and times sines over n rows: pairs, sum (k, 2).
   Four directions at a time share what is loaded of the features. */
static void moments(long n, long k, long stride, const real *restrict u, const real *restrict c,
                    const real *restrict s, real *restrict sum) {
    long j = 0;
    for (; j + 4 <= k; j += 4) {
        const real *restrict p = u + j * stride, *restrict q = p + stride;
        const real *restrict r = q + stride, *restrict t = r + stride;
        real pc = 0, ps = 0, qc = 0, qs = 0, rc = 0, rs = 0, tc = 0, ts = 0;
#pragma omp simd reduction(+ : pc, ps, qc, qs, rc, rs, tc, ts)
        for (long i = 0; i < n; i++) {
            pc += p[i] * c[i], ps += p[i] * s[i];
            qc += q[i] * c[i], qs += q[i] * s[i];
            rc += r[i] * c[i], rs += r[i] * s[i];
            tc += t[i] * c[i], ts += t[i] * s[i];
        }
        const real found[8] = {pc, ps, qc, qs, rc, rs, tc, ts};
        memcpy(sum + 2 * j, found, sizeof found);
    }
    for (; j < k; j++) {
        const real *restrict p = u + j * stride;
        real pc = 0, ps = 0;
#pragma omp simd reduction(+ : pc, ps)
        for (long i = 0; i < n; i++) pc += p[i] * c[i], ps += p[i] * s[i];
        sum[2 * j] = pc, sum[2 * j + 1] = ps;
    }
}

/* Frequencies w (m, d) at inputs x (d, n), or their angles (m, n) where not NULL.

   Each of these where its arrays are not NULL:
   partial (threads, n), zero: rows to be added up give sum_r weight[0, r] cos + weight[1, r] sin;
   gradient (k, 2, m), k <= MOST: sums over the rows of directions (k, n) times cosines, and times
   sines; cosines, sines (m, n): the features, times scale. Weights (2, m) have rows
   ``weight_stride`` apart, gradients ``gradient_stride``. */
void fourier_pass(long n, long d, long m, const real *x, const real *w, const real *angles,
                  double scale, const real *weight, long weight_stride, real *partial, long k,
                  const real *directions, real *gradient, long gradient_stride, real *cosines,
                  real *sines, int threads) {
#pragma omp parallel num_threads(threads)
    {
        real angle[STRIP], own_cosine[STRIP], own_sine[STRIP], total[STRIP], sum[2 * MOST];
        for (long start = 0; start < n; start += STRIP) {
            const long size = n - start < STRIP ? n - start : STRIP;
            for (long i = 0; i < size; i++) total[i] = 0;
#pragma omp for schedule(static) nowait
            for (long r = 0; r < m; r++) {
                if (angles)
                    memcpy(angle, angles + r * n + start, size * sizeof(real));
                else
                    project(size, d, n, x + start, w + r * d, angle);
                real *const c = cosines ? cosines + r * n + start : own_cosine;
                real *const s = sines ? sines + r * n + start : own_sine;
                wave(size, (real)scale, angle, c, s);
                if (partial) {
                    const real a = weight[r], b = weight[weight_stride + r];
                    for (long i = 0; i < size; i++) total[i] = FMA(a, c[i], FMA(b, s[i], total[i]));
                }
                if (gradient) {
                    moments(size, k, n, directions + start, c, s, sum);
                    for (long j = 0; j < 2 * k; j++) {
                        real *const g = gradient + j * gradient_stride + r;
                        *g = start ? *g + sum[j] : sum[j];
                    }
                }
            }
            if (partial) {
                real *const mine = partial + omp_get_thread_num() * n + start;
                for (long i = 0; i < size; i++) mine[i] = total[i];
            }
        }
    }
}
