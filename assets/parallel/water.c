/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Water-Nsquared: the motion of flexible water molecules in a periodic box, all pairs within half a box.
 *
 *     water [THREADS [MOLECULES [STEPS]]]          1, 512 and 3 by default
 *
 * The program of that name in S. C. Woo et al., "The SPLASH-2 Programs", ISCA 1995, written anew:
 * - between molecules, the potential of Matsuoka, Clementi and Yoshimine (J. Chem. Phys. 64, 1976), with a
 *   reaction field up to the cutoff;
 * - within a molecule, the force field of Bartlett, Shavitt and Purvis (J. Chem. Phys. 71, 1979);
 * - the predictor and corrector of Gear, of sixth order, in steps of 0.15 fs.
 * Units are u, angstrom and fs. The derivative of order k is held times dt^k / k!.
 *
 * Each thread owns a run of molecules. For each of them it takes the pairs with the half of all molecules
 * that follows. It sums forces in an array of its own, then adds that to the molecules under a lock for each.
 * A molecule's record holds all its orders, as in SPLASH-2, with no padding.
 *
 * The time covers the first forces and all steps. Thread 0 alone places the molecules before that.
 * The potential energy is computed every third step (SPLASH-2's default) and after the last.
 * The line before the result has the time from step 2 on, which SPLASH-2 gives as its measured time.
 */
#include "crew.h"
#include <math.h>

enum { H1, O, H2, M, ATOMS = 3, SITES = 4 };
enum { PLACE, SPEED, PULL, ORDER = 6, FORCE, ROWS = 9 };
enum { CHARGED = 9, PAIRS = 14, LOCKS = 4096, ENERGY_EVERY = 3, DIRECTIONS = 3 };

#define STEP_FS 0.15
#define DALTON_GRAM 1.6605655e-24
#define BOLTZMANN (1.380662e-16 / DALTON_GRAM * 1e-14) /* u A^2 / (fs^2 K), from erg */
#define KELVIN 298.0
#define GRAM_PER_CM3 0.998
#define LEAST_CUTOFF 6.212752
#define BOND 0.9572
#define ANGLE 1.824218
#define KJ_PER_MOL 1e4

static const double mass[ATOMS] = {1.007825, 15.99945, 1.007825};

/* The negative charge sits on the bisector, this far from the oxygen towards the middle of the hydrogens. */
#define CHARGE_SHIFT 0.2677

#define CHARGE2 0.07152158
static const double charge[CHARGED] = {4 * CHARGE2, -2 * CHARGE2, -2 * CHARGE2, -2 * CHARGE2, -2 * CHARGE2,
                                       CHARGE2, CHARGE2, CHARGE2, CHARGE2};
/* The site pairs: charged ones first, of which the last four (hydrogens) repel each other besides. */
static const unsigned char site_a[PAIRS] = {M, M, M, H1, H2, H1, H1, H2, H2, O, O, O, H1, H2};
static const unsigned char site_b[PAIRS] = {M, H1, H2, M, M, H1, H2, H1, H2, O, H1, H2, O, O};
enum { HH = 5, OO = 9, OH = 10 };
static const double oo_a = 455.3131, oo_b = 5.1527107;
static const double hh_a = 0.27879839, hh_b = 2.7608437;
static const double oh_a = 0.60895706, oh_b = 2.9618955;
static const double oh_minus_a = 0.11447336, oh_minus_b = 2.2332641;

/* The field within a molecule: 1 and 2 for the bonds, 3 for the angle times a bond's length. */
#define PER (1 / BOND)
static const double f11 = 0.512596, f33 = 0.048098, f12 = -0.005823, f13 = 0.016452;
static const double f111 = -0.57191 * PER, f333 = -0.007636 * PER, f112 = -0.001867 * PER;
static const double f113 = -0.002047 * PER, f123 = -0.03083 * PER, f133 = -0.0094245 * PER;
static const double f1111 = 0.8431 * PER * PER, f3333 = -0.00193 * PER * PER, f1112 = -0.0030 * PER * PER;
static const double f1122 = 0.0036 * PER * PER, f1113 = -0.012 * PER * PER, f1123 = 0.0060 * PER * PER;
static const double f1133 = -0.0048 * PER * PER, f1233 = 0.0211 * PER * PER, f1333 = 0.006263 * PER * PER;

static const double gear[ORDER + 1] = {863.0 / 6048, 665.0 / 1008, 1, 25.0 / 36, 35.0 / 144, 1.0 / 24,
                                       1.0 / 360};

typedef double atoms[DIRECTIONS][ATOMS];

struct molecule {
    atoms row[ROWS];
    double centre[DIRECTIONS]; /* where the negative charge is */
};
_Static_assert(sizeof(struct molecule) == 672, "SPLASH-2's record");

/* Locks, barriers and sums lie together, in SPLASH-2's order. */
struct common {
    struct lock intra_lock, inter_lock, kinetic_lock, potential_lock;
    struct lock molecule_lock[LOCKS];
    struct barrier step_barrier, inter_barrier, potential_barrier;
    double virial;
    double kinetic[DIRECTIONS];
    double intra, inter, reaction;
};

static int threads, count, steps;
static double box, half_box, cutoff2, reaction_slope, reaction_shift, o_share, h_share;
static struct molecule *water;
static struct common *common;
static atoms *gathered; /* `count` of each thread, one thread's after the other's */

/* What lies between two molecules: the vectors of the site pairs, the nearest images taken. */
struct apart {
    double by[DIRECTIONS][PAIRS];
    double square[PAIRS];
    int beyond; /* charged pairs beyond the cutoff */
};

static int first_of(int thread)
{
    return (int)((long)count * thread / threads);
}

static void place_charge(struct molecule *at)
{
    for (int d = 0; d < DIRECTIONS; d++) {
        const double *x = at->row[PLACE][d];
        at->centre[d] = o_share * x[O] + h_share * (x[H1] + x[H2]);
    }
}

/* ---- Beginning ---- */

static void set_constants(void)
{
    double total = mass[H1] + mass[O] + mass[H2];
    box = cbrt(count * total * DALTON_GRAM / GRAM_PER_CM3) * 1e8;
    half_box = box / 2;
    double cutoff = fmax(half_box, LEAST_CUTOFF);
    cutoff2 = cutoff * cutoff;
    reaction_slope = 1 / (cutoff2 * cutoff);
    reaction_shift = 1.5 / cutoff;
    h_share = CHARGE_SHIFT / (BOND * cos(ANGLE / 2)) / 2;
    o_share = 1 - 2 * h_share;
}

static double uniform(uint64_t *seed)
{
    uint64_t z = (*seed += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static double normal(uint64_t *seed)
{
    double sum = -6;
    for (int n = 0; n < 12; n++)
        sum += uniform(seed);
    return sum;
}

static void place_molecules(void)
{
    int side = (int)ceil(cbrt(count) - 1e-5);
    double pitch = box / side, along = BOND * cos(ANGLE / 2), across = BOND * sin(ANGLE / 2);
    for (int n = 0; n < count; n++) {
        double (*x)[ATOMS] = water[n].row[PLACE];
        int cell[DIRECTIONS] = {n / (side * side), n / side % side, n % side};
        for (int d = 0; d < DIRECTIONS; d++)
            x[d][H1] = x[d][O] = x[d][H2] = (cell[d] + 0.5) * pitch;
        x[0][H1] += along;
        x[0][H2] += along;
        x[1][H1] += across;
        x[1][H2] -= across;
    }
}

/* Random speeds of no total momentum, of the same temperature in each direction. */
static void set_speeds(void)
{
    uint64_t seed = 1;
    double total = (mass[H1] + mass[O] + mass[H2]) * count;
    for (int d = 0; d < DIRECTIONS; d++) {
        double momentum = 0, square = 0;
        for (int n = 0; n < count; n++)
            for (int a = 0; a < ATOMS; a++) {
                double v = normal(&seed) / sqrt(mass[a]);
                water[n].row[SPEED][d][a] = v;
                momentum += mass[a] * v;
            }
        for (int n = 0; n < count; n++)
            for (int a = 0; a < ATOMS; a++) {
                double v = water[n].row[SPEED][d][a] -= momentum / total;
                square += mass[a] * v * v;
            }
        double factor = STEP_FS * sqrt(ATOMS * count * BOLTZMANN * KELVIN / square);
        for (int n = 0; n < count; n++)
            for (int a = 0; a < ATOMS; a++)
                water[n].row[SPEED][d][a] *= factor;
    }
}

/* ---- Within a molecule ---- */

struct bent {
    double a[DIRECTIONS], b[DIRECTIONS]; /* from the oxygen to the hydrogens */
    double ra, rb, cosine, angle;
};

static struct bent bent(const struct molecule *at)
{
    struct bent is;
    double aa = 0, bb = 0, ab = 0;
    for (int d = 0; d < DIRECTIONS; d++) {
        const double *x = at->row[PLACE][d];
        is.a[d] = x[H1] - x[O];
        is.b[d] = x[H2] - x[O];
        aa += is.a[d] * is.a[d];
        bb += is.b[d] * is.b[d];
        ab += is.a[d] * is.b[d];
    }
    is.ra = sqrt(aa);
    is.rb = sqrt(bb);
    is.cosine = ab / (is.ra * is.rb);
    is.angle = acos(is.cosine);
    return is;
}

static double intra_energy(double p, double q, double t)
{
    double pp = p * p, qq = q * q, pq = p * q, tt = t * t, sum = p + q;
    double second = f11 / 2 * (pp + qq) + f33 / 2 * tt + f12 * pq + f13 * sum * t;
    double third = f111 * (pp * p + qq * q) + f333 * tt * t + f112 * sum * pq + f113 * (pp + qq) * t +
                   f123 * pq * t + f133 * sum * tt;
    double fourth = f1111 * (pp * pp + qq * qq) + f3333 * tt * tt + f1112 * (pp + qq) * pq + f1122 * pq * pq +
                    f1113 * (pp * p + qq * q) * t + f1123 * sum * pq * t + f1133 * (pp + qq) * tt +
                    f1233 * pq * tt + f1333 * sum * tt * t;
    return second + third + fourth;
}

/* The derivative of intra_energy by p; that by q is the same with p and q exchanged. */
static double bond_slope(double p, double q, double t)
{
    double pp = p * p, qq = q * q, tt = t * t;
    return f11 * p + f12 * q + f13 * t + 3 * f111 * pp + f112 * (2 * p * q + qq) + 2 * f113 * p * t +
           f123 * q * t + f133 * tt + 4 * f1111 * pp * p + f1112 * (3 * pp + qq) * q + 2 * f1122 * p * qq +
           3 * f1113 * pp * t + f1123 * (2 * p * q + qq) * t + 2 * f1133 * p * tt + f1233 * q * tt +
           f1333 * tt * t;
}

/* The derivative of intra_energy by t. */
static double angle_slope(double p, double q, double t)
{
    double pp = p * p, qq = q * q, pq = p * q, sum = p + q;
    return f33 * t + f13 * sum + 3 * f333 * t * t + f113 * (pp + qq) + f123 * pq + 2 * f133 * sum * t +
           4 * f3333 * t * t * t + f1113 * (pp * p + qq * q) + f1123 * sum * pq + 2 * f1133 * (pp + qq) * t +
           2 * f1233 * pq * t + 3 * f1333 * sum * t * t;
}

static void intra_forces(int from, int to)
{
    double virial = 0;
    for (int n = from; n < to; n++) {
        struct bent is = bent(&water[n]);
        double p = is.ra - BOND, q = is.rb - BOND, t = (is.angle - ANGLE) * BOND;
        double slope_a = bond_slope(p, q, t) / is.ra, slope_b = bond_slope(q, p, t) / is.rb;
        double turn = angle_slope(p, q, t) * BOND / sqrt(1 - is.cosine * is.cosine);
        double both = turn / (is.ra * is.rb);
        slope_a += turn * is.cosine / (is.ra * is.ra);
        slope_b += turn * is.cosine / (is.rb * is.rb);
        for (int d = 0; d < DIRECTIONS; d++) {
            double *force = water[n].row[FORCE][d];
            force[H1] = both * is.b[d] - slope_a * is.a[d];
            force[H2] = both * is.a[d] - slope_b * is.b[d];
            force[O] = -(force[H1] + force[H2]);
            virial += force[H1] * is.a[d] + force[H2] * is.b[d];
        }
        place_charge(&water[n]);
    }
    lock_take(&common->intra_lock);
    common->virial += virial;
    lock_release(&common->intra_lock);
}

/* ---- Between molecules ---- */

/* The last partner of a molecule, not yet reduced to below `count`.
 * Of an even count the two that are half a round apart meet once, at either in turn.
 */
static int last_partner(int n)
{
    int half = count / 2;
    int other = count % 2 == 0 && (n < half) != (n % half % 2 == 0);
    return n + half - other;
}

static void measure(const struct molecule *a, const struct molecule *b, struct apart *pair)
{
    for (int d = 0; d < DIRECTIONS; d++) {
        const double *xa = a->row[PLACE][d], *xb = b->row[PLACE][d];
        double pa[SITES] = {xa[H1], xa[O], xa[H2], a->centre[d]};
        double pb[SITES] = {xb[H1], xb[O], xb[H2], b->centre[d]};
        for (int k = 0; k < PAIRS; k++) {
            double by = pa[site_a[k]] - pb[site_b[k]];
            if (fabs(by) > half_box)
                by -= copysign(box, by);
            pair->by[d][k] = by;
        }
    }
    pair->beyond = 0;
    for (int k = 0; k < PAIRS; k++) {
        double x = pair->by[0][k], y = pair->by[1][k], z = pair->by[2][k];
        pair->square[k] = x * x + y * y + z * z;
        pair->beyond += k < CHARGED && pair->square[k] >= cutoff2;
    }
}

/* The force of each site pair, divided by its distance. */
static void site_forces(const struct apart *pair, double force[PAIRS])
{
    double far[PAIRS];
    for (int k = 0; k < PAIRS; k++) {
        far[k] = sqrt(pair->square[k]);
        force[k] = 0;
    }
    for (int k = 0; k < CHARGED; k++)
        if (pair->square[k] < cutoff2)
            force[k] = charge[k] * (1 / (pair->square[k] * far[k]) - reaction_slope);
    if (pair->beyond)
        return;
    for (int k = HH; k < OO; k++)
        force[k] += hh_a * hh_b * exp(-hh_b * far[k]) / far[k];
    force[OO] = oo_a * oo_b * exp(-oo_b * far[OO]) / far[OO];
    for (int k = OH; k < PAIRS; k++)
        force[k] = (oh_a * oh_b * exp(-oh_b * far[k]) -
                    oh_minus_a * oh_minus_b * exp(-oh_minus_b * far[k])) / far[k];
}

/* Adds the forces of a pair of molecules to what is gathered for each. Returns its virial. */
static double pair_forces(const struct apart *pair, atoms on_a, atoms on_b)
{
    double force[PAIRS], virial = 0;
    site_forces(pair, force);
    for (int k = 0; k < PAIRS; k++)
        virial += force[k] * pair->square[k];
    for (int d = 0; d < DIRECTIONS; d++) {
        double a[SITES] = {0}, b[SITES] = {0};
        for (int k = 0; k < PAIRS; k++) {
            double pull = force[k] * pair->by[d][k];
            a[site_a[k]] += pull;
            b[site_b[k]] -= pull;
        }
        for (int s = 0; s < ATOMS; s++) {
            double share = s == O ? o_share : h_share;
            on_a[d][s] += a[s] + share * a[M];
            on_b[d][s] += b[s] + share * b[M];
        }
    }
    return virial;
}

/* Adds what this thread has gathered to the molecules, from its own first to the last partner of its last. */
static void add_gathered(int from, int to, atoms *mine)
{
    int last = to + count / 2 < from + count ? to + count / 2 : from + count;
    for (int i = from; i < last; i++) {
        int n = i % count;
        lock_take(&common->molecule_lock[n % LOCKS]);
        for (int d = 0; d < DIRECTIONS; d++)
            for (int a = 0; a < ATOMS; a++)
                water[n].row[FORCE][d][a] += mine[n][d][a];
        lock_release(&common->molecule_lock[n % LOCKS]);
    }
}

/* Leaves dt^2 / 2 times the acceleration as the force of this thread's molecules. */
static void inter_forces(int thread, int from, int to)
{
    atoms *mine = gathered + (size_t)thread * count;
    double virial = 0;
    memset(mine, 0, count * sizeof *mine);
    for (int n = from; n < to; n++)
        for (int i = n + 1, last = last_partner(n); i <= last; i++) {
            int other = i < count ? i : i - count;
            struct apart pair;
            measure(&water[n], &water[other], &pair);
            if (pair.beyond < CHARGED)
                virial += pair_forces(&pair, mine[n], mine[other]);
        }
    lock_take(&common->inter_lock);
    common->virial += virial;
    lock_release(&common->inter_lock);
    add_gathered(from, to, mine);
    barrier_wait(&common->inter_barrier, threads);
    for (int n = from; n < to; n++)
        for (int d = 0; d < DIRECTIONS; d++)
            for (int a = 0; a < ATOMS; a++)
                water[n].row[FORCE][d][a] *= STEP_FS * STEP_FS / 2 / mass[a];
}

/* ---- Energy ---- */

static void pair_energy(const struct apart *pair, double *inter, double *reaction)
{
    double far[PAIRS];
    for (int k = 0; k < PAIRS; k++)
        far[k] = sqrt(pair->square[k]);
    for (int k = 0; k < CHARGED; k++)
        if (pair->square[k] < cutoff2) {
            *inter += charge[k] / far[k];
            *reaction += charge[k] * (pair->square[k] * reaction_slope / 2 - reaction_shift);
        }
    if (pair->beyond)
        return;
    for (int k = HH; k < OO; k++)
        *inter += hh_a * exp(-hh_b * far[k]);
    *inter += oo_a * exp(-oo_b * far[OO]);
    for (int k = OH; k < PAIRS; k++)
        *inter += oh_a * exp(-oh_b * far[k]) - oh_minus_a * exp(-oh_minus_b * far[k]);
}

static void sum_potential(int from, int to)
{
    double intra = 0, inter = 0, reaction = 0;
    for (int n = from; n < to; n++) {
        struct bent is = bent(&water[n]);
        intra += intra_energy(is.ra - BOND, is.rb - BOND, (is.angle - ANGLE) * BOND);
        place_charge(&water[n]);
    }
    barrier_wait(&common->potential_barrier, threads);
    for (int n = from; n < to; n++)
        for (int i = n + 1, last = last_partner(n); i <= last; i++) {
            struct apart pair;
            measure(&water[n], &water[i < count ? i : i - count], &pair);
            if (pair.beyond < CHARGED)
                pair_energy(&pair, &inter, &reaction);
        }
    lock_take(&common->potential_lock);
    common->intra += intra;
    common->inter += inter;
    common->reaction += reaction;
    lock_release(&common->potential_lock);
}

static void sum_kinetic(int from, int to)
{
    double sum[DIRECTIONS] = {0};
    for (int n = from; n < to; n++)
        for (int d = 0; d < DIRECTIONS; d++)
            for (int a = 0; a < ATOMS; a++) {
                double v = water[n].row[SPEED][d][a] / STEP_FS;
                sum[d] += mass[a] * v * v / 2;
            }
    lock_take(&common->kinetic_lock);
    for (int d = 0; d < DIRECTIONS; d++)
        common->kinetic[d] += sum[d];
    lock_release(&common->kinetic_lock);
}

/* ---- Motion ---- */

static void predict(int from, int to)
{
    for (int n = from; n < to; n++)
        for (int least = 0; least < ORDER; least++)
            for (int k = ORDER - 1; k >= least; k--)
                for (int d = 0; d < DIRECTIONS; d++)
                    for (int a = 0; a < ATOMS; a++)
                        water[n].row[k][d][a] += water[n].row[k + 1][d][a];
}

static void correct(int from, int to)
{
    for (int n = from; n < to; n++)
        for (int d = 0; d < DIRECTIONS; d++)
            for (int a = 0; a < ATOMS; a++) {
                double miss = water[n].row[FORCE][d][a] - water[n].row[PULL][d][a];
                for (int k = 0; k <= ORDER; k++)
                    water[n].row[k][d][a] += gear[k] * miss;
            }
}

/* Moves a molecule whose oxygen has left the box to the other side. */
static void bring_back(int from, int to)
{
    for (int n = from; n < to; n++)
        for (int d = 0; d < DIRECTIONS; d++) {
            double *x = water[n].row[PLACE][d];
            double by = x[O] > box ? -box : x[O] < 0 ? box : 0;
            if (by != 0)
                for (int a = 0; a < ATOMS; a++)
                    x[a] += by;
        }
}

static void clear_sums(void)
{
    common->virial = common->intra = common->inter = common->reaction = 0;
    for (int d = 0; d < DIRECTIONS; d++)
        common->kinetic[d] = 0;
}

static void step(int thread, int number, int from, int to)
{
    predict(from, to);
    intra_forces(from, to);
    barrier_wait(&common->step_barrier, threads);
    inter_forces(thread, from, to);
    correct(from, to);
    bring_back(from, to);
    sum_kinetic(from, to);
    barrier_wait(&common->step_barrier, threads);
    if (number % ENERGY_EVERY == 0 || number == steps) {
        sum_potential(from, to);
        barrier_wait(&common->step_barrier, threads);
    }
}

/* The geometric mean of the energies, the virial and a weighted sum of each order.
 * A sum over places alone would hide a wrong force: in a few steps it moves a molecule by too little.
 */
static double check(double kinetic)
{
    double logs = log(kinetic) + log(fabs(common->intra)) + log(fabs(common->inter + common->reaction)) +
                  log(fabs(common->virial));
    for (int k = 0; k <= FORCE; k++) {
        double sum = 0;
        for (int n = 0; n < count; n++)
            for (int d = 0; d < DIRECTIONS; d++)
                for (int a = 0; a < ATOMS; a++) {
                    unsigned at = (unsigned)((n * DIRECTIONS + d) * ATOMS + a);
                    sum += fabs(water[n].row[k][d][a]) * (1 + at * 40503u % 65536u / 65536.0);
                }
        logs += log(sum);
    }
    return exp(logs / (FORCE + 5));
}

static void report(uint64_t ns, uint64_t later_ns)
{
    double unit = KJ_PER_MOL / count, kinetic = common->kinetic[0] + common->kinetic[1] + common->kinetic[2];
    double inter = common->inter + common->reaction;
    printf("kJ/mol: kinetic %.7f, intra %.7f, inter %.7f, total %.7f; step 2 on: %" PRIu64 " ns\n",
           kinetic * unit, common->intra * unit, inter * unit,
           (kinetic + common->intra + inter) * unit, later_ns);
    crew_report("water", threads, ns, check(kinetic));
}

static void work(int thread)
{
    int from = first_of(thread), to = first_of(thread + 1);
    if (thread == 0) {
        place_molecules();
        set_speeds();
    }
    barrier_wait(&common->step_barrier, threads);
    uint64_t begin = now_ns(), second = 0;
    intra_forces(from, to);
    barrier_wait(&common->step_barrier, threads);
    inter_forces(thread, from, to);
    for (int n = from; n < to; n++)
        memcpy(water[n].row[PULL], water[n].row[FORCE], sizeof(atoms));
    for (int number = 1; number <= steps; number++) {
        if (thread == 0)
            clear_sums();
        barrier_wait(&common->step_barrier, threads);
        if (number == 2)
            second = now_ns();
        step(thread, number, from, to);
    }
    uint64_t end = now_ns();
    if (thread == 0)
        report(end - begin, second ? end - second : 0);
}

int main(int argc, char **argv)
{
    threads = crew_arg(argc, argv, 1, 1, CREW_MAX, 1);
    count = crew_arg(argc, argv, 2, 8, 32768, 512);
    steps = crew_arg(argc, argv, 3, 1, 1000000, 3);
    set_constants();
    water = crew_memory(count * sizeof *water);
    common = crew_memory(sizeof *common);
    gathered = crew_memory((size_t)threads * count * sizeof *gathered);
    crew_run(threads, work);
    return 0;
}
