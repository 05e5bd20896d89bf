/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Eddies in an ocean basin of two layers: the work and the data layout of Ocean of SPLASH-2.
 * Usage: ocean [THREADS [N [strips|squares]]], by default 1, 1026 and squares.
 * N is the side of the grids with their borders: 34, 66, 130, 258, 514 or 1026.
 *
 * `squares`: each thread has a nearly square block of each grid, contiguous in memory, and copies the edges
 * of its neighbours into its own borders. Two threads have two blocks of whole rows, four have 2 x 2.
 * `strips`: each grid is one array in row order. Each thread has a run of rows, and reads others' in place.
 *
 * The parameters are SPLASH-2's: tolerance 1e-7, 20000 m between points, 28800 s a time step. It ends after
 * two days, which is six time steps. SPLASH-2 leaves the start and the first time step out of its statistics,
 * and so does the time that is reported here: it is that of the other five steps.
 *
 * The results do not depend on the threads. For that, the coarsest grid is the same for any number of them,
 * and sums over a grid are in fixed point.
 *
 * Sources: Woo et al., "The SPLASH-2 Programs", ISCA 1995; Singh, Hennessy, "Finding and Exploiting
 * Parallelism in an Ocean Simulation Program", JPDC 15(1), 1992; Brandt, "Multi-Level Adaptive Solutions to
 * Boundary-Value Problems", Math. Comp. 31, 1977 (cycle C); Arakawa, J. Comp. Phys. 1, 1966 (the jacobian).
 */
#include "crew.h"
#include <math.h>

#define LEVELS_MAX 9    /* sides without borders from 4 to 1024 */
#define COARSEST 4
#define TOLERANCE 1e-7
#define SPACING 20000.0 /* m */
#define TIME_STEP 28800.0 /* s */
#define END (2 * 86400.0)
#define STEPS ((int)(END / TIME_STEP))
#define SLOW 0.6        /* go to a coarser grid when a sweep leaves more of the error than this */
#define SWEEPS_MAX 10000

#define PI 3.141592653589793
#define CORIOLIS 8.3e-5         /* f in the middle of the basin, 1/s */
#define BETA 2e-11              /* change of f northward, 1/(m s) */
#define GRAVITY 0.02            /* reduced, m/s^2 */
#define UPPER 1000.0            /* depths of the layers, m */
#define LOWER 4000.0
#define DEPTH (UPPER + LOWER)
#define FRICTION (-5.12e11)     /* lateral, biharmonic, m^4/s */
#define WIND 0.5e-4             /* stress by density, m^2/s^2 */
#define COUPLING (-DEPTH * CORIOLIS * CORIOLIS / (UPPER * LOWER * GRAVITY))
#define UPPER_PART (UPPER / DEPTH)
#define LOWER_PART (LOWER / DEPTH)

#define FIXED_POINT 0x1p48

enum colour { RED, BLACK, BOTH };

/* The grids of the finest side. A pair has the upper layer first. */
enum {
    STREAM, STREAM_LOW,             /* psi */
    PAST, PAST_LOW,                 /* psi a step ago */
    SUM, SUM_LOW,                   /* over time */
    HOMOGENEOUS,                    /* the solution for no source and a border of 1 */
    DIFFERENCE, MEAN,               /* rates of the two modes: ga and gb */
    VORTICITY, VORTICITY_LOW,
    SHEAR, INTERFACE,
    FRICTION_2, FRICTION_2_LOW,
    ADVECTION, ADVECTION_LOW, STRETCHING,
    FRICTION_1, FRICTION_1_LOW,     /* also the third laplacian */
    HELD, HELD_LOW,
    CURL,                           /* of the wind */
    DIFFERENCE_OLD, MEAN_OLD, GRIDS
};

/* Which points of a grid are a thread's. Its rows and columns are numbered from 1, 0 is a border. */
struct part {
    int rows, cols, stride;
    int row0, col0;               /* where its row 0 and column 0 lie in the whole grid */
    int top, bottom, left, right; /* the first and last row and column, with the basin's borders */
};

/* One grid: for each thread, where its row 0, column 0 is. */
struct grid {
    double *at[CREW_MAX];
};

struct shared {
    struct lock error_lock, sum_lock;
    struct barrier barrier;
    double error, homogeneous;
    __int128 sum;
};

static int threads, side, levels, across, down, strips;
static struct part parts[LEVELS_MAX][CREW_MAX];
static struct grid grids[GRIDS], values[LEVELS_MAX], sources[LEVELS_MAX];
static double spacing[LEVELS_MAX], tolerance[LEVELS_MAX];
static struct shared *shared;
static uint64_t elapsed;

static void meet(void)
{
    barrier_wait(&shared->barrier, threads);
}

static const struct part *finest(int me)
{
    return &parts[levels - 1][me];
}

/* Point `first` of a line and every `by`-th one up to `last`. The points are `step` apart. */
static void copy_line(double *dst, const double *src, size_t step, int first, int last, int by)
{
    for (int k = first; k <= last; k += by)
        dst[(size_t)k * step] = src[(size_t)k * step];
}

/* The edges of `me`'s neighbours to its borders: the points of one colour, or all and the corners. */
static void fetch(const struct grid *grid, int level, int me, enum colour colour)
{
    if (strips)
        return;
    const struct part *part = &parts[level][me];
    int up = part->top > 0, low = part->bottom == part->rows;
    int left = part->left > 0, right = part->right == part->cols;
    int cols = part->cols, stride = part->stride, by = colour == BOTH ? 1 : 2;
    int first = 2 - ((part->row0 + part->col0 + (int)colour) & 1);
    int row = colour == BOTH ? part->left : first;
    int end_row = colour == BOTH || part->rows & 1 ? row : 3 - row;
    int col = colour == BOTH ? part->top : first;
    int end_col = colour == BOTH || cols & 1 ? col : 3 - col;
    size_t last = (size_t)part->rows * stride, end = last + stride;
    double *own = grid->at[me];
    if (up)
        copy_line(own, grid->at[me - across] + last, 1, row, part->right, by);
    if (low)
        copy_line(own + end, grid->at[me + across] + stride, 1, end_row, part->right, by);
    if (left)
        copy_line(own, grid->at[me - 1] + cols, (size_t)stride, col, part->bottom, by);
    if (right)
        copy_line(own + cols + 1, grid->at[me + 1] + 1, (size_t)stride, end_col, part->bottom, by);
    if (colour != BOTH)
        return;
    if (up && left)
        own[0] = grid->at[me - across - 1][last + cols];
    if (up && right)
        own[cols + 1] = grid->at[me - across + 1][last + 1];
    if (low && left)
        own[end] = grid->at[me + across - 1][stride + cols];
    if (low && right)
        own[end + cols + 1] = grid->at[me + across + 1][stride + 1];
}

static double *row_of(int name, int me, int i)
{
    return grids[name].at[me] + (size_t)i * finest(me)->stride;
}

/* `value` to the points of the basin's border that are `me`'s. */
static void set_border(const struct grid *grid, int level, int me, double value)
{
    const struct part *part = &parts[level][me];
    for (int i = part->top; i <= part->bottom; i++) {
        double *row = grid->at[me] + (size_t)i * part->stride;
        if (i == 0 || i == part->rows + 1)
            for (int j = part->left; j <= part->right; j++)
                row[j] = value;
        if (part->left == 0)
            row[0] = value;
        if (part->right == part->cols + 1)
            row[part->cols + 1] = value;
    }
}

static void laplacian(int from, int to, int me)
{
    const struct part *part = finest(me);
    const double scale = 1 / (SPACING * SPACING);
    fetch(&grids[from], levels - 1, me, BOTH);
    for (int i = 1; i <= part->rows; i++) {
        const double *here = row_of(from, me, i), *south = here - part->stride, *north = here + part->stride;
        double *out = row_of(to, me, i);
        for (int j = 1; j <= part->cols; j++)
            out[j] = scale * (south[j] + north[j] + here[j - 1] + here[j + 1] - 4 * here[j]);
    }
    set_border(&grids[to], levels - 1, me, 0);
}

/* Arakawa's jacobian, which keeps energy and enstrophy. */
static void jacobian(int first, int second, int to, int me)
{
    const struct part *part = finest(me);
    const double scale = 1 / (12 * SPACING * SPACING);
    fetch(&grids[first], levels - 1, me, BOTH);
    fetch(&grids[second], levels - 1, me, BOTH);
    for (int i = 1; i <= part->rows; i++) {
        const double *a = row_of(first, me, i), *as = a - part->stride, *an = a + part->stride;
        const double *b = row_of(second, me, i), *bs = b - part->stride, *bn = b + part->stride;
        double *out = row_of(to, me, i);
        for (int j = 1; j <= part->cols; j++) {
            double plain = (a[j + 1] - a[j - 1]) * (bn[j] - bs[j]) - (an[j] - as[j]) * (b[j + 1] - b[j - 1]);
            double corners_b = a[j + 1] * (bn[j + 1] - bs[j + 1]) - a[j - 1] * (bn[j - 1] - bs[j - 1])
                - an[j] * (bn[j + 1] - bn[j - 1]) + as[j] * (bs[j + 1] - bs[j - 1]);
            double corners_a = bn[j] * (an[j + 1] - an[j - 1]) - bs[j] * (as[j + 1] - as[j - 1])
                - b[j + 1] * (an[j + 1] - as[j + 1]) + b[j - 1] * (an[j - 1] - as[j - 1]);
            out[j] = scale * (plain + corners_b + corners_a);
        }
    }
    set_border(&grids[to], levels - 1, me, 0);
}

/* `to` = `x` * grid `a` + `y` * grid `b` on all points of `me`. */
static void combine(int to, double x, int a, double y, int b, int me)
{
    const struct part *part = finest(me);
    for (int i = part->top; i <= part->bottom; i++) {
        const double *left = row_of(a, me, i), *right = row_of(b, me, i);
        double *out = row_of(to, me, i);
        for (int j = part->left; j <= part->right; j++)
            out[j] = x * left[j] + y * right[j];
    }
}

/* Between grids of the finest side. */
static void copy(const struct grid *from, const struct grid *to, int me)
{
    const struct part *part = finest(me);
    for (int i = part->top; i <= part->bottom; i++) {
        size_t at = (size_t)i * part->stride + part->left;
        memcpy(to->at[me] + at, from->at[me] + at, (size_t)(part->right - part->left + 1) * sizeof(double));
    }
}

static void clear(int name, int me)
{
    const struct part *part = finest(me);
    for (int i = part->top; i <= part->bottom; i++)
        memset(row_of(name, me, i) + part->left, 0, (size_t)(part->right - part->left + 1) * sizeof(double));
}

/* One sweep over the points of one colour. Returns the greatest change. */
static double sweep(int level, int me, enum colour colour)
{
    const struct part *part = &parts[level][me];
    const double factor = 1 / (4 - COUPLING * spacing[level] * spacing[level]);
    double greatest = 0;
    fetch(&values[level], level, me, colour == RED ? BLACK : RED);
    for (int i = 1; i <= part->rows; i++) {
        double *here = values[level].at[me] + (size_t)i * part->stride;
        const double *south = here - part->stride, *north = here + part->stride;
        const double *source = sources[level].at[me] + (size_t)i * part->stride;
        for (int j = 1 + ((part->row0 + part->col0 + i + 1 + (int)colour) & 1); j <= part->cols; j += 2) {
            double value = factor * (south[j] + north[j] + here[j - 1] + here[j + 1] - source[j]);
            double change = fabs(value - here[j]);
            if (change > greatest)
                greatest = change;
            here[j] = value;
        }
    }
    return greatest;
}

/* A red and a black sweep by all threads. Returns the greatest change of all. */
static double relaxation(int level, int me)
{
    meet();
    if (me == 0)
        shared->error = 0;
    double error = sweep(level, me, RED);
    meet();
    double black = sweep(level, me, BLACK);
    if (black > error)
        error = black;
    lock_take(&shared->error_lock);
    if (error > shared->error)
        shared->error = error;
    lock_release(&shared->error_lock);
    meet();
    return shared->error;
}

/* The residual of `level` becomes the source of the coarser one. */
static void coarsen(int level, int me)
{
    const struct part *fine = &parts[level][me], *part = &parts[level - 1][me];
    const double factor = 4 - COUPLING * spacing[level] * spacing[level];
    fetch(&values[level], level, me, BOTH);
    for (int i = 1; i <= part->rows; i++) {
        double *value = values[level - 1].at[me] + (size_t)i * part->stride;
        double *source = sources[level - 1].at[me] + (size_t)i * part->stride;
        for (int j = 1; j <= part->cols; j++)
            value[j] = source[j] = 0;
        for (int half = 0; half < 2; half++) {
            int from = 2 * (i + part->row0) - 1 + half - fine->row0;
            const double *here = values[level].at[me] + (long)from * fine->stride;
            const double *south = here - fine->stride, *north = here + fine->stride;
            const double *wanted = sources[level].at[me] + (long)from * fine->stride;
            for (int j = 1; j <= part->cols; j++)
                for (int k = 2 * j - 1; k <= 2 * j; k++) {
                    double sides = south[k] + north[k] + here[k - 1] + here[k + 1];
                    source[j] += wanted[k] - (sides - factor * here[k]);
                }
        }
    }
}

/* The solution of `level` corrects that of the finer one. */
static void refine(int level, int me)
{
    const struct part *part = &parts[level][me], *fine = &parts[level + 1][me];
    const int n = COARSEST << level;
    const double unit = 1.0 / (2 * n + 1);
    fetch(&values[level], level, me, BOTH);
    for (int i = 1; i <= fine->rows; i++) {
        int row = (i + fine->row0 + 1) / 2, even = !((i + fine->row0) & 1);
        double far = unit * (even ? row : n + 1 - row);
        const double *near = values[level].at[me] + (long)(row - part->row0) * part->stride;
        const double *other = even ? near + part->stride : near - part->stride;
        double *out = values[level + 1].at[me] + (size_t)i * fine->stride;
        for (int j = 1; j <= part->cols; j++) {
            int col = j + part->col0;
            double west = unit * (n + 1 - col), east = unit * col;
            double before = (1 - far) * near[j - 1] + far * other[j - 1];
            double here = (1 - far) * near[j] + far * other[j];
            double after = (1 - far) * near[j + 1] + far * other[j + 1];
            out[2 * j - 1] += (1 - west) * here + west * before;
            out[2 * j] += (1 - east) * here + east * after;
        }
    }
}

/* Solves on the finest level, with the coarser ones where sweeps do little. */
static void solve(int me)
{
    int level = levels - 1;
    double before = HUGE_VAL;
    for (int sweeps = 0; sweeps < SWEEPS_MAX; sweeps++) {
        double error = relaxation(level, me);
        if (error < tolerance[level]) {
            if (level == levels - 1)
                return;
            refine(level++, me);
            before = HUGE_VAL;
        } else if (level > 0 && error > SLOW * before) {
            coarsen(level--, me);
            before = HUGE_VAL;
        } else {
            before = error;
        }
    }
    fprintf(stderr, "ocean: no solution after %d sweeps\n", SWEEPS_MAX);
    exit(1);
}

/* Solves with grid `source` as the right side, from the guess in grid `guess`. The result is in both. */
static void solve_grid(int source, int guess, int me)
{
    const struct part *part = finest(me);
    const struct grid *value = &values[levels - 1];
    copy(&grids[guess], value, me);
    for (int i = part->top; i <= part->bottom; i++) {
        const double *from = row_of(source, me, i);
        double *to = sources[levels - 1].at[me] + (size_t)i * part->stride;
        for (int j = part->left; j <= part->right; j++)
            to[j] = SPACING * SPACING * from[j];
    }
    solve(me);
    copy(value, &grids[source], me);
    copy(value, &grids[guess], me);
}

/* Adds `me`'s part of the integral over grid `name` to the shared sum. */
static void add_sum(int name, int me)
{
    const struct part *part = finest(me);
    __int128 sum = 0;
    for (int i = part->top; i <= part->bottom; i++) {
        double weight = i + part->row0 == 0 || i + part->row0 == side - 1 ? FIXED_POINT / 2 : FIXED_POINT;
        const double *row = row_of(name, me, i);
        for (int j = part->left; j <= part->right; j++) {
            int edge = j + part->col0 == 0 || j + part->col0 == side - 1;
            sum += (int64_t)((edge ? weight / 2 : weight) * row[j]);
        }
    }
    lock_take(&shared->sum_lock);
    shared->sum += sum;
    lock_release(&shared->sum_lock);
}

/* The right sides of the two equations. */
static void right_sides(int me)
{
    const struct part *part = finest(me);
    for (int i = part->top; i <= part->bottom; i++) {
        const double *up = row_of(ADVECTION, me, i), *low = row_of(ADVECTION_LOW, me, i);
        const double *stretching = row_of(STRETCHING, me, i), *curl = row_of(CURL, me, i);
        const double *drag = row_of(FRICTION_1, me, i), *drag_low = row_of(FRICTION_1_LOW, me, i);
        double *difference = row_of(DIFFERENCE, me, i), *mean = row_of(MEAN, me, i);
        for (int j = part->left; j <= part->right; j++) {
            difference[j] = up[j] - low[j] + COUPLING * stretching[j] + curl[j] / UPPER
                + FRICTION * (drag[j] - drag_low[j]);
            mean[j] = UPPER_PART * up[j] + LOWER_PART * low[j] + curl[j] / DEPTH
                + FRICTION * (UPPER_PART * drag[j] + LOWER_PART * drag_low[j]);
        }
    }
}

static void add_coriolis(int name, int me)
{
    const struct part *part = finest(me);
    for (int i = part->top; i <= part->bottom; i++) {
        double *row = row_of(name, me, i);
        double f = CORIOLIS + BETA * SPACING * (i + part->row0 - 0.5 * (side - 1));
        for (int j = part->left; j <= part->right; j++)
            row[j] += f;
    }
}

static void prepare(int me)
{
    if (me == 0)
        shared->sum = 0;
    clear(DIFFERENCE, me);
    clear(MEAN, me);
    for (int low = 0; low < 2; low++) {
        laplacian(STREAM + low, VORTICITY + low, me);
        copy(&grids[PAST + low], &grids[HELD + low], me);
        laplacian(PAST + low, FRICTION_1 + low, me);
    }
    combine(SHEAR, 1, STREAM, -1, STREAM_LOW, me);
    combine(INTERFACE, LOWER_PART, STREAM, UPPER_PART, STREAM_LOW, me);
    meet();
    for (int low = 0; low < 2; low++) {
        copy(&grids[STREAM + low], &grids[PAST + low], me);
        add_coriolis(VORTICITY + low, me);
        laplacian(FRICTION_1 + low, FRICTION_2 + low, me);
    }
    meet();
    for (int low = 0; low < 2; low++) {
        copy(&grids[HELD + low], &grids[STREAM + low], me);
        jacobian(VORTICITY + low, PAST + low, ADVECTION + low, me);
    }
    meet();
    jacobian(SHEAR, INTERFACE, STRETCHING, me);
    for (int low = 0; low < 2; low++)
        laplacian(FRICTION_2 + low, FRICTION_1 + low, me);
    meet();
    right_sides(me);
    meet();
}

static void time_step(int me)
{
    prepare(me);
    solve_grid(DIFFERENCE, DIFFERENCE_OLD, me);
    meet();
    add_sum(DIFFERENCE, me);
    meet();
    /* The layers keep their volume: the difference has no integral. */
    double border = -((double)shared->sum / FIXED_POINT) / shared->homogeneous;
    combine(DIFFERENCE, 1, DIFFERENCE, border, HOMOGENEOUS, me);
    solve_grid(MEAN, MEAN_OLD, me);
    meet();
    combine(SHEAR, 1, MEAN, -UPPER_PART, DIFFERENCE, me);
    combine(INTERFACE, 1, MEAN, LOWER_PART, DIFFERENCE, me);
    meet();
    combine(STREAM, 1, STREAM, 2 * TIME_STEP, INTERFACE, me);
    combine(STREAM_LOW, 1, STREAM_LOW, 2 * TIME_STEP, SHEAR, me);
    meet();
}

/* All grids of `me`, the wind, and the homogeneous solution. */
static void start(int me)
{
    const struct part *part = finest(me);
    for (int name = 0; name < GRIDS; name++)
        clear(name, me);
    const double scale = 0.5 * SPACING * (side - 1);
    for (int i = 1; i <= part->rows; i++) {
        double curl = -(PI * WIND / scale) * sin(PI * (i + part->row0) * SPACING / scale);
        for (int j = 1; j <= part->cols; j++)
            row_of(CURL, me, i)[j] = curl;
    }
    set_border(&grids[HOMOGENEOUS], levels - 1, me, 1);
    meet();
    copy(&grids[HOMOGENEOUS], &grids[MEAN_OLD], me);
    solve_grid(HOMOGENEOUS, MEAN_OLD, me);
    clear(MEAN_OLD, me);
    meet();
    add_sum(HOMOGENEOUS, me);
    meet();
    if (me == 0)
        shared->homogeneous = (double)shared->sum / FIXED_POINT;
    meet();
}

static void work(int me)
{
    uint64_t began = 0;
    start(me);
    for (int step = 0; step < STEPS; step++) {
        if (step == 1 && me == 0)
            began = now_ns();
        time_step(me);
    }
    combine(SUM, 1, SUM, 1, PAST, me);
    combine(SUM_LOW, 1, SUM_LOW, 1, PAST_LOW, me);
    meet();
    if (me == 0)
        elapsed = now_ns() - began;
}

static void share_out(int level)
{
    int n = COARSEST << level;
    for (int me = 0; me < threads; me++) {
        struct part *part = &parts[level][me];
        int row = me / across, col = me % across;
        part->row0 = row * n / down;
        part->col0 = col * n / across;
        part->rows = (row + 1) * n / down - part->row0;
        part->cols = (col + 1) * n / across - part->col0;
        part->stride = part->cols + 2;
        part->top = row > 0;
        part->bottom = part->rows + (row == down - 1);
        part->left = col > 0;
        part->right = part->cols + (col == across - 1);
    }
}

/* Takes a grid of `level` from `*memory`: one array, or `me`'s block. */
static void place(struct grid *grid, int level, int me, double **memory)
{
    size_t stride = (size_t)parts[level][me].stride;
    grid->at[me] = *memory;
    for (int other = 0; strips && other < threads; other++)
        grid->at[other] = *memory + parts[level][other].row0 * stride;
    *memory += stride * ((strips ? COARSEST << level : parts[level][me].rows) + 2);
}

static void lay_out(void)
{
    size_t points = 0;
    for (int level = 0; level < levels; level++) {
        share_out(level);
        size_t each = 2 + (level == levels - 1 ? GRIDS : 0);
        int rows = strips ? (COARSEST << level) + 2 : threads * (parts[level][0].rows + 2);
        points += each * rows * parts[level][0].stride;
        spacing[level] = SPACING * (1 << (levels - 1 - level));
        tolerance[level] = TOLERANCE * (1 << (levels - 1 - level));
    }
    double *memory = crew_memory(points * sizeof(double));
    for (int me = 0; me < (strips ? 1 : threads); me++) {
        for (int name = 0; name < GRIDS; name++)
            place(&grids[name], levels - 1, me, &memory);
        for (int level = 0; level < levels; level++)
            place(&values[level], level, me, &memory);
        for (int level = 0; level < levels; level++)
            place(&sources[level], level, me, &memory);
    }
    shared = crew_memory(sizeof *shared);
}

/* Four digits of a sum over both layers' stream functions, then a digest of all their bits. A stale border of
 * the last step changes little but the last bits. */
static double check(void)
{
    double sum = 0;
    uint64_t digest = 0, bits;
    for (int n = 0; n < 2 * side * threads; n++) {
        int i = n / threads % side, me = n % threads;
        const struct part *part = finest(me);
        if (i - part->row0 < part->top || i - part->row0 > part->bottom)
            continue;
        const double *row = row_of(n < side * threads ? STREAM : STREAM_LOW, me, i - part->row0);
        for (int j = part->left; j <= part->right; j++) {
            sum += fabs(row[j]);
            memcpy(&bits, &row[j], sizeof bits);
            digest = (digest ^ bits) * 0x9e3779b97f4a7c15;
        }
    }
    double unit = pow(10, floor(log10(sum)) - 3);
    return (floor(sum / unit) + (double)(digest >> 44) / 0x1p20) * unit;
}

int main(int argc, char **argv)
{
    threads = crew_arg(argc, argv, 1, 1, CREW_MAX, 1);
    side = crew_arg(argc, argv, 2, 34, 1026, 1026);
    strips = argc > 3 && !strcmp(argv[3], "strips");
    for (levels = 1; (COARSEST << (levels - 1)) + 2 < side; levels++)
        ;
    for (across = 1, down = threads; !strips && across * 2 <= down / 2; across *= 2)
        down /= 2;
    if ((COARSEST << (levels - 1)) + 2 != side || (argc > 3 && !strips && strcmp(argv[3], "squares"))
        || (!strips && threads & (threads - 1))) {
        fprintf(stderr, "usage: %s [THREADS [N [strips|squares]]]: N is a power of two and 2, "
                "squares need a power of two threads\n", argv[0]);
        return 2;
    }
    lay_out();
    crew_run(threads, work);
    crew_report("ocean", threads, elapsed, check());
    return 0;
}
