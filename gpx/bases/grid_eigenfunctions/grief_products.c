/* Eigenfunctions of a product grid at many points, and the gradient of a weighted sum of them.

   Every input has a few one-dimensional functions, each a Chebyshev series; each eigenfunction is
   another's value times the ratio of two of them. All of it on strips of points that stay in the
   caches, without memory of its own beyond a strip. -DDOUBLE for float64. */

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#ifdef DOUBLE
typedef double real;
enum { STRIP = 32 };
#else
typedef float real;
enum { STRIP = 64 };
#endif

/* Node 0 is the product of the ground functions, node j > 0 its parent's times ratio[which[j]];
   ratio r = i (width - 1) + a - 1 is function a of input i over its ground function. */
typedef struct {
    long n, d, width, terms, nodes;
    const long *degrees;             /* (d,): terms of each input's series */
    const int *parent, *which;       /* (nodes,) */
    const real *x;                   /* (n, d) */
    const real *middle, *inverse;    /* (d,): x is scaled to (x - middle) inverse */
    const real *series;              /* (d, width, terms) */
} Basis;

/* T_0 ... of input i at points from start on: (degree, STRIP) */
static inline void polynomials(const Basis *b, long i, long start, long size, real *restrict t) {
    const real *restrict x = b->x + start * b->d + i;
    const real middle = b->middle[i], inverse = b->inverse[i];
    for (long k = 0; k < STRIP; k++) t[k] = 1;
    for (long k = 0; k < size; k++) t[STRIP + k] = (x[k * b->d] - middle) * inverse;
    for (long k = size; k < STRIP; k++) t[STRIP + k] = 0;
    for (long q = 2; q < b->degrees[i]; q++) {
        const real *restrict one = t + (q - 1) * STRIP, *restrict two = t + (q - 2) * STRIP;
        const real *restrict first = t + STRIP;
        real *restrict here = t + q * STRIP;
        for (long k = 0; k < STRIP; k++) here[k] = 2 * first[k] * one[k] - two[k];
    }
}

/* values of one series: (STRIP,) */
static inline void sum_series(long degree, const real *restrict series, const real *restrict t,
                              real *restrict out) {
    real even[STRIP], odd[STRIP];
    for (long k = 0; k < STRIP; k++) even[k] = odd[k] = 0;
    for (long q = 0; q + 1 < degree; q += 2) {
        const real a = series[q], b = series[q + 1];
        const real *restrict p = t + q * STRIP, *restrict r = p + STRIP;
        for (long k = 0; k < STRIP; k++) {
            even[k] += a * p[k];
            odd[k] += b * r[k];
        }
    }
    if (degree % 2) {
        const real a = series[degree - 1];
        for (long k = 0; k < STRIP; k++) even[k] += a * t[(degree - 1) * STRIP + k];
    }
    for (long k = 0; k < STRIP; k++) out[k] = even[k] + odd[k];
}

/* ground functions (d, STRIP), their product (STRIP,) and ratios (d (width - 1), STRIP) */
static void ratios(const Basis *b, long start, long size, real *restrict t, real *restrict ground,
                   real *restrict root, real *restrict ratio) {
    for (long k = 0; k < STRIP; k++) root[k] = 1;
    for (long i = 0; i < b->d; i++, ground += STRIP) {
        const real *series = b->series + i * b->width * b->terms;
        polynomials(b, i, start, size, t);
        sum_series(b->degrees[i], series, t, ground);
        real inverse[STRIP];
        for (long k = 0; k < STRIP; k++) {
            root[k] *= ground[k];
            inverse[k] = 1 / ground[k];
        }
        for (long a = 1; a < b->width; a++, ratio += STRIP) {
            sum_series(b->degrees[i], series + a * b->terms, t, ratio);
            for (long k = 0; k < STRIP; k++) ratio[k] *= inverse[k];
        }
    }
}

static inline void strip_products(const Basis *b, long start, long size, const real *restrict ratio,
                                  real *restrict products) {
    for (long j = 1; j < b->nodes; j++) {
        const real *restrict above = products + b->parent[j] * b->n + start;
        const real *restrict factor = ratio + b->which[j] * STRIP;
        real *restrict here = products + j * b->n + start;
        for (long k = 0; k < size; k++) here[k] = above[k] * factor[k];
    }
}

/* g (nodes, STRIP): gradient of the products, overwritten; slope (d (width - 1), STRIP): zero */
static inline void strip_slopes(const Basis *b, long start, long size, const real *restrict ratio,
                                const real *restrict products, real *restrict g,
                                real *restrict slope) {
    for (long j = b->nodes - 1; j > 0; j--) {
        const real *restrict above = products + b->parent[j] * b->n + start;
        const real *restrict factor = ratio + b->which[j] * STRIP;
        const real *restrict here = g + j * STRIP;
        real *restrict up = g + b->parent[j] * STRIP;
        real *restrict down = slope + b->which[j] * STRIP;
        for (long k = 0; k < size; k++) {
            down[k] += here[k] * above[k];
            up[k] += here[k] * factor[k];
        }
    }
}

/* total (degree,) += sum over points of the polynomials times g */
static inline void series_slope(long degree, const real *restrict t, const real *restrict g,
                                double *restrict total) {
    for (long q = 0; q < degree; q++) {
        const real *restrict p = t + q * STRIP;
        real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (long k = 0; k < STRIP; k++) sum += p[k] * g[k];
        total[q] += sum;
    }
}

/* products (nodes, n). Returns 1 where a product of ground functions is not above ``low`` in size:
   then logarithms have to do, and the products are of no use. */
int eigenfunctions(long n, long d, long width, long terms, long nodes, const long *degrees,
                   const int *parent, const int *which, const real *x, const real *middle,
                   const real *inverse, const real *series, real *products, double low,
                   int threads) {
    const Basis b = {n, d, width, terms, nodes, degrees, parent, which, x, middle, inverse, series};
    int small = 0;
#pragma omp parallel num_threads(threads) reduction(| : small)
    {
        real *const t = malloc((terms + d * width + 1) * STRIP * sizeof(real));
        real *const ground = t + terms * STRIP, *const root = ground + d * STRIP;
        real *const ratio = root + STRIP;
#pragma omp for schedule(static)
        for (long start = 0; start < n; start += STRIP) {
            const long size = n - start < STRIP ? n - start : STRIP;
            ratios(&b, start, size, t, ground, root, ratio);
            for (long k = 0; k < size; k++) {
                const real a = root[k] < 0 ? -root[k] : root[k];
                small |= !(a > low);
            }
            memcpy(products + start, root, size * sizeof(real));
            if (size == STRIP) /* a constant number of points unrolls */
                strip_products(&b, start, STRIP, ratio, products);
            else
                strip_products(&b, start, size, ratio, products);
        }
        free(t);
    }
    return small;
}

/* Adds to totals (threads, d, width, terms) the gradient with respect to the series, given that with
   respect to the products, grad (nodes, n). */
void eigenfunction_slopes(long n, long d, long width, long terms, long nodes, const long *degrees,
                          const int *parent, const int *which, const real *x, const real *middle,
                          const real *inverse, const real *series, const real *products,
                          const real *grad, double *totals, int threads) {
    const Basis b = {n, d, width, terms, nodes, degrees, parent, which, x, middle, inverse, series};
    const long count = d * (width - 1);
#pragma omp parallel num_threads(threads)
    {
        real *const g = malloc((nodes + terms + d + 1 + 2 * count) * STRIP * sizeof(real));
        real *const t = g + nodes * STRIP, *const ground = t + terms * STRIP;
        real *const root = ground + d * STRIP, *const ratio = root + STRIP;
        real *const slope = ratio + count * STRIP;
        double *const total = totals + omp_get_thread_num() * d * width * terms;
#pragma omp for schedule(static)
        for (long start = 0; start < n; start += STRIP) {
            const long size = n - start < STRIP ? n - start : STRIP;
            ratios(&b, start, size, t, ground, root, ratio);
            memset(slope, 0, count * STRIP * sizeof(real));
            if (size < STRIP) memset(g, 0, nodes * STRIP * sizeof(real));
            for (long j = 0; j < nodes; j++)
                memcpy(g + j * STRIP, grad + j * n + start, size * sizeof(real));
            if (size == STRIP)
                strip_slopes(&b, start, STRIP, ratio, products, g, slope);
            else
                strip_slopes(&b, start, size, ratio, products, g, slope);
            /* ratio = function / ground and root = prod ground */
            for (long i = 0; i < d; i++) {
                real rest[STRIP], inverse_ground[STRIP];
                for (long k = 0; k < STRIP; k++) {
                    rest[k] = g[k] * root[k];
                    inverse_ground[k] = 1 / ground[i * STRIP + k];
                }
                polynomials(&b, i, start, size, t);
                double *const mine = total + i * width * terms;
                for (long a = 1; a < width; a++) {
                    real *const s = slope + (i * (width - 1) + a - 1) * STRIP;
                    const real *const r = ratio + (i * (width - 1) + a - 1) * STRIP;
                    for (long k = 0; k < STRIP; k++) {
                        rest[k] -= s[k] * r[k];
                        s[k] *= inverse_ground[k];
                    }
                    series_slope(degrees[i], t, s, mine + a * terms);
                }
                for (long k = 0; k < STRIP; k++) rest[k] *= inverse_ground[k];
                series_slope(degrees[i], t, rest, mine);
            }
        }
        free(g);
    }
}
