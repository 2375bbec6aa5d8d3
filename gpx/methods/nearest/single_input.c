/* The posterior of f at one input from the inducing points nearest to it: search and solution. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 8, MOST_NEAR = 32 };
enum { FOUND = 0, NO_FACTOR = 1, NOT_FINITE = 2, NO_MEMORY = 3 };
enum { RBF = 0, MATERN12 = 1, MATERN32 = 2, MATERN52 = 3 };

static const double EXPONENT_FLOOR = -70.0; /* as in gpx.kernels.exponential */
static const double SLACK = 1e-12;          /* far above what float64 rounds away */

/* Laid out as _Seen in compiled_input.py. */
struct seen {
    long points, columns, padded; /* padded: columns of coarse */
    long near, width;             /* H; columns of root, 0 where it holds deviations */
    long profile, most;           /* most: largest whole number of a rounded query */
    const double *unit;           /* (q,): coordinates are inputs in this unit */
    const double *places;         /* (M, q) */
    const double *by_column;      /* (q, M), or NULL where rounded places are compared first */
    const int8_t *coarse;         /* (M, padded): places less their centre, in whole steps */
    const double *centre;         /* (q,) */
    const double *step, *half_square, *size, *error; /* (M,): see compiled_input.py */
    const double *mean, *root;                       /* of q(u) */
    double scale, jitter;
};

static double profile_of(long profile, double r2)
{
    double a, value;
    if (profile == RBF) {
        a = -0.5 * r2;
        return exp(a > EXPONENT_FLOOR ? a : EXPONENT_FLOOR);
    }
    a = sqrt((profile == MATERN12 ? 1.0 : profile == MATERN32 ? 3.0 : 5.0) * r2);
    value = exp(-a > EXPONENT_FLOOR ? -a : EXPONENT_FLOOR);
    if (profile == MATERN32) value *= a + 1.0;
    if (profile == MATERN52) value *= a + r2 * (5.0 / 3.0) + 1.0;
    return value;
}

void profiles_of(long profile, long count, const double *r2, double *values)
{
    for (long i = 0; i < count; i++) values[i] = profile_of(profile, r2[i]);
}

static double distance(const double *a, const double *b, long columns)
{
    double lanes[LANES] = {0.0}, total = 0.0;
    long c = 0;
    for (; c + LANES <= columns; c += LANES)
        for (int l = 0; l < LANES; l++) {
            double gap = a[c + l] - b[c + l];
            lanes[l] += gap * gap;
        }
    for (int l = 0; l < LANES; l++) total += lanes[l];
    for (; c < columns; c++) total += (a[c] - b[c]) * (a[c] - b[c]);
    return total;
}

/* Put a point into the sorted list of the nearest; the first of equal ones stays before. */
static void insert(long h, long *near, double *r2, long point, double at)
{
    long place = h - 1;
    if (!(at < r2[place])) return;
    for (; place > 0 && at < r2[place - 1]; place--) {
        r2[place] = r2[place - 1];
        near[place] = near[place - 1];
    }
    r2[place] = at;
    near[place] = point;
}

static void start(long h, long *near, double *r2)
{
    for (long i = 0; i < h; i++) {
        near[i] = -1;
        r2[i] = INFINITY;
    }
}

/* Compare with all places. */
static void search_all(const struct seen *s, const double *asked, double *all, long *near,
                       double *r2)
{
    long m = s->points;
    memset(all, 0, m * sizeof(double));
    for (long c = 0; c < s->columns; c++) {
        const double *column = s->by_column + c * m, at = asked[c];
        for (long i = 0; i < m; i++) all[i] += (column[i] - at) * (column[i] - at);
    }
    start(s->near, near, r2);
    for (long i = 0; i < m; i++)
        if (all[i] < r2[s->near - 1]) insert(s->near, near, r2, i, all[i]);
}

/* Compare with rounded places, and then with those that rounding does not tell apart.

   With query q, place x, their rounded values q', x': |q.x - q'.x'| is at most
   |q - q'| |x'| + |q| |x - x'|, so that (|q - x|^2 - |q|^2) / 2 lies within that of
   |x|^2 / 2 - q'.x'. */
static int search_coarse(const struct seen *s, const double *asked, double *work, int16_t *whole,
                         long *near, double *r2)
{
    long m = s->points, q = s->columns, h = s->near;
    double *low = work, *centred = work + m, square = 0.0, largest = 0.0, off = 0.0, norm;
    for (long c = 0; c < q; c++) {
        double at = centred[c] = asked[c] - s->centre[c];
        square += at * at;
        largest = fabs(at) > largest ? fabs(at) : largest;
    }
    if (!isfinite(square)) return NOT_FINITE;
    norm = sqrt(square);
    double step = largest > 0.0 ? largest / s->most : 1.0;
    memset(whole, 0, s->padded * sizeof(int16_t));
    for (long c = 0; c < q; c++) {
        whole[c] = (int16_t)lrint(centred[c] / step);
        double rest = centred[c] - step * whole[c];
        off += rest * rest;
    }
    off = sqrt(off);
    start(h, near, r2); /* of the upper bounds first */
    for (long i = 0; i < m; i++) {
        const int8_t *row = s->coarse + i * s->padded;
        int32_t product = 0;
        for (long c = 0; c < s->padded; c++) product += (int32_t)whole[c] * (int16_t)row[c];
        double middle = s->half_square[i] - step * s->step[i] * product;
        double bound = (off * s->size[i] + norm * s->error[i]) * (1.0 + SLACK)
                       + SLACK * (square + s->half_square[i]);
        low[i] = middle - bound;
        insert(h, near, r2, i, middle + bound);
    }
    double farthest = 0.0; /* of h places: no other place counts beyond it */
    for (long i = 0; i < h; i++) {
        if (near[i] < 0) return NOT_FINITE;
        double at = distance(asked, s->places + near[i] * q, q);
        farthest = at > farthest ? at : farthest;
    }
    start(h, near, r2);
    for (long i = 0; i < m; i++) {
        double limit = r2[h - 1] < farthest ? r2[h - 1] : farthest;
        if (2.0 * low[i] + square <= limit * (1.0 + SLACK))
            insert(h, near, r2, i, distance(asked, s->places + i * q, q));
    }
    return FOUND;
}

/* Weights K^-1 k in place of k, of the lower triangle of K (h, h); the factor stays there. */
static int solve(long h, double *k, double *weights)
{
    for (long j = 0; j < h; j++) {
        double pivot = k[j * h + j];
        for (long c = 0; c < j; c++) pivot -= k[j * h + c] * k[j * h + c];
        if (!(pivot > 0.0)) return NO_FACTOR;
        k[j * h + j] = pivot = sqrt(pivot);
        for (long i = j + 1; i < h; i++) {
            double sum = k[i * h + j];
            for (long c = 0; c < j; c++) sum -= k[i * h + c] * k[j * h + c];
            k[i * h + j] = sum / pivot;
        }
    }
    for (long i = 0; i < h; i++) {
        for (long c = 0; c < i; c++) weights[i] -= k[i * h + c] * weights[c];
        weights[i] /= k[i * h + i];
    }
    for (long i = h - 1; i >= 0; i--) {
        for (long c = i + 1; c < h; c++) weights[i] -= k[c * h + i] * weights[c];
        weights[i] /= k[i * h + i];
    }
    return FOUND;
}

/* Mean (less that of the prior) and variance of f.

   x (d,): in float64 (wide) or float32, of the columns of places.
   given (H,): the nearest points where they are known, nearest first, or NULL. */
int posterior_at(const struct seen *s, const void *x, int wide, const int64_t *given, double *found)
{
    long q = s->columns, h = s->near, m = s->points, near[MOST_NEAR];
    double r2[MOST_NEAR], k[MOST_NEAR * MOST_NEAR], weights[MOST_NEAR], cross[MOST_NEAR];
    int failed = FOUND;
    size_t numbers = q + (given ? 0 : m + q) + s->width;
    double *work = malloc(numbers * sizeof(double) + s->padded * sizeof(int16_t));
    if (!work) return NO_MEMORY;
    double *asked = work, *spread = work + q, *rest = spread + s->width;
    for (long c = 0; c < q; c++)
        asked[c] = (wide ? ((const double *)x)[c] : ((const float *)x)[c]) / s->unit[c];
    if (given) {
        for (long i = 0; i < h; i++) {
            near[i] = given[i];
            r2[i] = distance(asked, s->places + near[i] * q, q);
        }
    } else if (s->by_column) {
        search_all(s, asked, rest, near, r2);
    } else {
        failed = search_coarse(s, asked, rest, (int16_t *)(work + numbers), near, r2);
    }
    if (!failed && (near[h - 1] < 0 || !isfinite(r2[h - 1]))) failed = NOT_FINITE;
    if (!failed) {
        for (long i = 0; i < h; i++) {
            const double *place = s->places + near[i] * q;
            for (long j = 0; j < i; j++)
                k[i * h + j] =
                    s->scale * profile_of(s->profile, distance(place, s->places + near[j] * q, q));
            k[i * h + i] = s->scale * profile_of(s->profile, 0.0) + s->jitter;
            weights[i] = cross[i] = s->scale * profile_of(s->profile, r2[i]);
        }
        failed = solve(h, k, weights);
    }
    if (!failed) {
        double mean = 0.0, variance = s->scale, added = 0.0;
        for (long i = 0; i < h; i++) {
            mean += weights[i] * s->mean[near[i]];
            variance -= weights[i] * cross[i];
        }
        if (s->width) {
            memset(spread, 0, s->width * sizeof(double));
            for (long i = 0; i < h; i++) {
                const double *row = s->root + near[i] * s->width, weight = weights[i];
                for (long c = 0; c < s->width; c++) spread[c] += weight * row[c];
            }
            for (long c = 0; c < s->width; c++) added += spread[c] * spread[c];
        } else {
            for (long i = 0; i < h; i++) {
                double one = weights[i] * s->root[near[i]];
                added += one * one;
            }
        }
        found[0] = mean;
        found[1] = (variance > 0.0 ? variance : 0.0) + added;
    }
    free(work);
    return failed;
}
