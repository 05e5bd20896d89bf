/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The n-body problem in three dimensions, by the method of Barnes and Hut.
 *
 *     barnes [THREADS [BODIES [STEPS]]]        1 to 8, 64 to 262144, 3 to 1000; without: 1 16384 4
 *
 * After Barnes and Hut, "A hierarchical O(N log N) force-calculation algorithm", Nature 324, 1986; Singh and
 * others, "Load balancing and data locality in hierarchical N-body methods", JPDC 27, 1995; and Barnes of
 * Woo et al., "The SPLASH-2 programs", ISCA 1995. In a step all threads at once put bodies into an octree,
 * with a lock per cell; compute the moments of cells and leaves, from the leaves up; divide the bodies by
 * the interactions that each had in the step before (costzones); compute forces; and move bodies.
 *
 * Tolerance 1, softening 0.05, time step 0.025, leaves of up to 10 bodies, quadrupole moments. The first two
 * steps are not timed, as in SPLASH-2: they find the division of work.
 *
 * The result is the same for any number of threads, to the last bit: leaves keep their bodies sorted.
 */
#include "crew.h"
#include <math.h>

#define LEAF_BODIES 10
#define CELL_LOCKS 2048
#define GRID (1 << 30) /* the box's side in the whole numbers by which the tree is built */
#define EXTRA 64       /* room beyond SPLASH-2's share, for runs with few bodies */
#define UNTIMED 2

static const double time_step = 0.025, tolerance = 1.0, softening = 0.05;

enum kind { BODY = 1, CELL, LEAF };

/* How bodies, cells and leaves begin. Sizes and order of the four records are about those of SPLASH-2. */
struct node {
    short kind;
    double mass;
    double pos[3];
    int cost;  /* interactions of the step before, by which the bodies are divided */
    int level; /* a cell's: the bit of the coordinates that chooses a child */
    struct node *parent;
    int place; /* where it was put in its parent */
    int spare; /* a body's: interactions of this step; else: the thread that made it */
};

struct body {
    struct node node;
    double vel[3], acc[3], phi;
};

/* How cells and leaves begin. */
struct inner {
    struct node node;
    void *unused[2]; /* SPLASH-2's records have two links here */
    long number;
    double quad[3][3];
    atomic_short done; /* the moments are valid */
    int bodies;        /* a leaf's */
};

struct cell {
    struct inner inner;
    _Atomic(struct node *) child[8];
};

struct leaf {
    struct inner inner;
    struct node *body[LEAF_BODIES];
};

_Static_assert(sizeof(struct body) == 120 && sizeof(struct cell) == 232 && sizeof(struct leaf) == 248, "");

/* What one thread works with. SPLASH-2 pads this to pages of its own too. */
struct worker {
    _Alignas(4096) int id;
    struct cell *cells, **my_cells; /* a pool, and those in use */
    struct leaf *leaves, **my_leaves;
    struct body **my_bodies;
    int cell_count, leaf_count, body_count;
    double corner[3], side; /* the box */
    struct cell *last_cell; /* where the body before was put */
    int last_at[3];         /* and its coordinates */
    int64_t least, limit;   /* the zone: a body is in it if the costs before it sum up to this */
    struct node *self;      /* the body whose force is sought */
    double pos[3], acc[3], phi;
    int interactions;
};

/* What all write. */
struct common {
    struct barrier barrier;
    struct lock bounds_lock;
    double low[3], high[3];
    struct cell *root;
};

static struct worker workers[CREW_MAX];

/* Not written once the threads run. */
static int threads, body_total, steps;
static int most_cells, most_leaves, most_bodies; /* of a thread */
static struct body *bodies;
static struct lock *cell_locks;
static struct common *common;

static void fail(const char *why)
{
    fprintf(stderr, "barnes: %s\n", why);
    exit(1);
}

static void sync_all(void)
{
    barrier_wait(&common->barrier, threads);
}

static double random_between(double low, double high)
{
    static uint64_t state = 123;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return low + (high - low) * ((double)(state >> 11) / 9007199254740992.0);
}

/* A vector of this length in any direction. */
static void random_vector(double *vector, double length)
{
    double height = random_between(-1, 1), turn = random_between(0, 2 * M_PI);
    vector[0] = length * sqrt(1 - height * height) * cos(turn);
    vector[1] = length * sqrt(1 - height * height) * sin(turn);
    vector[2] = length * height;
}

/* Place and velocity of a body of Plummer's model (Aarseth, Henon and Wielen, 1974). */
static void plummer(struct body *body)
{
    const double scale = 9 * M_PI / 16;
    double radius, speed, height;
    do
        radius = 1 / sqrt(pow(random_between(1e-9, 0.999), -2.0 / 3) - 1);
    while (radius > 9);
    random_vector(body->node.pos, scale * radius);
    do {
        speed = random_between(0, 1);
        height = random_between(0, 0.1);
    } while (height > speed * speed * pow(1 - speed * speed, 3.5));
    speed *= sqrt(2) / pow(1 + radius * radius, 0.25);
    random_vector(body->vel, speed / sqrt(scale));
}

static void bounds_reset(double *low, double *high)
{
    for (int i = 0; i < 3; i++) {
        low[i] = INFINITY;
        high[i] = -INFINITY;
    }
}

/* Widens the bounds to hold the box from `from` to `to`. */
static void bounds_widen(double *low, double *high, const double *from, const double *to)
{
    for (int i = 0; i < 3; i++) {
        low[i] = from[i] < low[i] ? from[i] : low[i];
        high[i] = to[i] > high[i] ? to[i] : high[i];
    }
}

/* Two equal clusters side by side, as in SPLASH-2, and their bounds. */
static void make_bodies(void)
{
    int half = (body_total + 1) / 2;
    bounds_reset(common->low, common->high);
    for (int n = 0; n < body_total; n++) {
        struct body *body = &bodies[n];
        if (n < half)
            plummer(body);
        else
            *body = bodies[n - half];
        body->node.kind = BODY;
        body->node.mass = 1.0 / body_total;
        body->node.cost = 1;
        for (int i = 0; i < 3; i++)
            body->node.pos[i] += n < half ? 0 : 4;
        bounds_widen(common->low, common->high, body->node.pos, body->node.pos);
    }
}

/* A cube a little larger than the common bounds. */
static void take_box(struct worker *me)
{
    double side = 0;
    for (int i = 0; i < 3; i++)
        side = fmax(side, common->high[i] - common->low[i]);
    for (int i = 0; i < 3; i++)
        me->corner[i] = common->low[i] - side / 100000;
    me->side = side * 1.00002;
}

static void grid_of(const struct worker *me, const struct node *body, int *at)
{
    for (int i = 0; i < 3; i++) {
        double share = (body->pos[i] - me->corner[i]) / me->side;
        if (!(share >= 0 && share < 1))
            fail("a body is outside the box");
        at[i] = (int)(share * GRID);
    }
}

static int octant_of(const int *at, int level)
{
    return (at[0] & level ? 1 : 0) | (at[1] & level ? 2 : 0) | (at[2] & level ? 4 : 0);
}

static void hang(struct inner *inner, struct cell *parent, int level, int place)
{
    inner->node.level = level;
    inner->node.parent = (struct node *)parent;
    inner->node.place = place;
    inner->bodies = 0;
}

static void inner_init(struct worker *me, struct inner *inner, short kind, long number)
{
    inner->node.kind = kind;
    inner->node.spare = me->id;
    inner->number = number;
    atomic_store_explicit(&inner->done, 0, memory_order_relaxed);
}

static struct cell *new_cell(struct worker *me, struct cell *parent, int level, int place)
{
    int n = me->cell_count++;
    if (n == most_cells || !level)
        fail(level ? "too few cells" : "bodies too close together");
    struct cell *cell = me->my_cells[n] = &me->cells[n];
    inner_init(me, &cell->inner, CELL, (long)me->id * most_cells + n);
    hang(&cell->inner, parent, level, place);
    for (int i = 0; i < 8; i++)
        atomic_store_explicit(&cell->child[i], NULL, memory_order_relaxed);
    return cell;
}

static struct leaf *new_leaf(struct worker *me, struct cell *parent, int place)
{
    int n = me->leaf_count++;
    if (n == most_leaves)
        fail("too few leaves");
    struct leaf *leaf = me->my_leaves[n] = &me->leaves[n];
    inner_init(me, &leaf->inner, LEAF, (long)me->id * most_leaves + n);
    hang(&leaf->inner, parent, parent->inner.node.level >> 1, place);
    return leaf;
}

/* Keeps the leaf sorted: what came first depends on the threads' speed; sums must not. Bodies learn where
 * they are, as in SPLASH-2, though none asks: it makes their pages change hands.
 */
static void leaf_add(struct leaf *leaf, struct node *body)
{
    int place = leaf->inner.bodies++;
    body->parent = &leaf->inner.node;
    body->level = leaf->inner.node.level;
    body->place = place;
    for (; place > 0 && leaf->body[place - 1] > body; place--)
        leaf->body[place] = leaf->body[place - 1];
    leaf->body[place] = body;
}

/* A new cell in a full leaf's stead, with its bodies. The leaf stays in use, for the first body's octant. */
static struct cell *split(struct worker *me, struct leaf *leaf)
{
    struct node *old = &leaf->inner.node;
    struct cell *cell = new_cell(me, (struct cell *)old->parent, old->level, old->place);
    int level = cell->inner.node.level, at[3];
    struct leaf *by_octant[8] = {NULL};
    struct node *body[LEAF_BODIES];
    memcpy(body, leaf->body, sizeof body);
    for (int n = 0; n < LEAF_BODIES; n++) {
        grid_of(me, body[n], at);
        int octant = octant_of(at, level);
        if (n == 0) {
            hang(&leaf->inner, cell, level >> 1, octant);
            by_octant[octant] = leaf;
        } else if (!by_octant[octant])
            by_octant[octant] = new_leaf(me, cell, octant);
        leaf_add(by_octant[octant], body[n]);
    }
    for (int i = 0; i < 8; i++)
        atomic_store_explicit(&cell->child[i], (struct node *)by_octant[i], memory_order_relaxed);
    return cell;
}

/* Puts the body below the cell, in this octant. Whether there was room; if not, there is a new cell now. */
static int put_body(struct worker *me, struct cell *cell, int octant, struct body *body)
{
    struct lock *lock = &cell_locks[cell->inner.number % CELL_LOCKS];
    lock_take(lock);
    struct node *old = atomic_load_explicit(&cell->child[octant], memory_order_relaxed);
    struct node *node = old ? old : &new_leaf(me, cell, octant)->inner.node;
    struct leaf *leaf = (struct leaf *)node;
    int room = node->kind == LEAF && leaf->inner.bodies < LEAF_BODIES;
    if (room)
        leaf_add(leaf, &body->node);
    else if (node->kind == LEAF)
        node = &split(me, leaf)->inner.node;
    if (node != old)
        atomic_store_explicit(&cell->child[octant], node, memory_order_release);
    lock_release(lock);
    return room;
}

/* The search begins where the body before was put: bodies of a zone come in an order of neighbours. */
static void insert(struct worker *me, struct body *body)
{
    struct cell *cell = me->last_cell;
    int at[3], differ = 0;
    grid_of(me, &body->node, at);
    for (int i = 0; i < 3; i++) {
        differ |= at[i] ^ me->last_at[i];
        me->last_at[i] = at[i];
    }
    while (differ >= 2 * (int64_t)cell->inner.node.level)
        cell = (struct cell *)cell->inner.node.parent;
    for (;;) {
        int octant = octant_of(at, cell->inner.node.level);
        struct node *node = atomic_load_explicit(&cell->child[octant], memory_order_acquire);
        if (node && node->kind == CELL)
            cell = (struct cell *)node;
        else if (put_body(me, cell, octant, body))
            break;
    }
    me->last_cell = cell;
}

/* Mass, centre, cost and quadrupole moment of what a cell or leaf is made of. */
static void sum_up(struct inner *sum, struct node **parts, int count)
{
    struct node *node = &sum->node;
    node->mass = node->cost = 0;
    memset(node->pos, 0, sizeof node->pos);
    memset(sum->quad, 0, sizeof sum->quad);
    for (int n = 0; n < count; n++) {
        node->mass += parts[n]->mass;
        node->cost += parts[n]->cost;
        for (int i = 0; i < 3; i++)
            node->pos[i] += parts[n]->mass * parts[n]->pos[i];
    }
    for (int i = 0; i < 3; i++)
        node->pos[i] /= node->mass;
    for (int n = 0; n < count; n++) {
        double off[3], square = 0;
        for (int i = 0; i < 3; i++) {
            off[i] = parts[n]->pos[i] - node->pos[i];
            square += off[i] * off[i];
        }
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++) {
                sum->quad[i][j] += parts[n]->mass * (3 * off[i] * off[j] - (i == j ? square : 0));
                if (parts[n]->kind != BODY)
                    sum->quad[i][j] += ((struct inner *)parts[n])->quad[i][j];
            }
    }
    atomic_store_explicit(&sum->done, 1, memory_order_release);
}

static void cell_sum(struct cell *cell)
{
    struct node *parts[8];
    int count = 0;
    for (int octant = 0; octant < 8; octant++) {
        struct node *node = atomic_load_explicit(&cell->child[octant], memory_order_relaxed);
        while (node && !atomic_load_explicit(&((struct inner *)node)->done, memory_order_acquire))
            relax();
        if (node)
            parts[count++] = node;
    }
    sum_up(&cell->inner, parts, count);
}

/* Each thread sums up what it made, the newest first: a cell is older than those below, whoever made them. */
static void moments(struct worker *me)
{
    for (int n = me->leaf_count - 1; n >= 0; n--)
        sum_up(&me->my_leaves[n]->inner, me->my_leaves[n]->body, me->my_leaves[n]->inner.bodies);
    for (int n = me->cell_count - 1; n >= 0; n--)
        cell_sum(me->my_cells[n]);
}

static int turned(int bits, int by)
{
    return ((bits << by) | (bits >> (3 - by))) & 7;
}

/* Takes the zone's bodies below the node; `before` is the cost of those before it. Their order is that of a
 * Hilbert curve, entered at corner `entry` along `axis` (Hamilton, "Compact Hilbert indices", 2006).
 */
static void take_zone(struct worker *me, struct node *node, int64_t before, int entry, int axis)
{
    static const int entries[8] = {0, 0, 0, 3, 3, 6, 6, 5}, axes[8] = {0, 1, 1, 2, 2, 1, 1, 0};
    if (node->kind == LEAF) {
        struct leaf *leaf = (struct leaf *)node;
        if (me->body_count > most_bodies - LEAF_BODIES)
            fail("too many bodies in a zone");
        for (int n = 0; n < leaf->inner.bodies; before += leaf->body[n++]->cost)
            if (before >= me->least && before < me->limit)
                me->my_bodies[me->body_count++] = (struct body *)leaf->body[n];
        return;
    }
    struct cell *cell = (struct cell *)node;
    int turn = (axis + 1) % 3;
    for (int n = 0; n < 8 && before < me->limit; n++) {
        int octant = turned(n ^ (n >> 1), turn) ^ entry;
        struct node *child = atomic_load_explicit(&cell->child[octant], memory_order_relaxed);
        if (child && before + child->cost > me->least)
            take_zone(me, child, before, entry ^ turned(entries[n], turn), (turn + axes[n]) % 3);
        before += child ? child->cost : 0;
    }
}

static void find_zone(struct worker *me)
{
    int64_t cost = common->root->inner.node.cost;
    me->least = cost * me->id / threads;
    me->limit = cost * (me->id + 1) / threads;
    me->body_count = 0;
    take_zone(me, &common->root->inner.node, 0, 0, 0);
}

/* Adds what the node does to the body in hand, `off` and `square` away. */
static void attract(struct worker *me, const struct node *node, const double *off, double square)
{
    square += softening * softening;
    double distance = sqrt(square);
    double phi = node->mass / distance;
    double pull = phi / square;
    me->phi -= phi;
    for (int i = 0; i < 3; i++)
        me->acc[i] += pull * off[i];
    me->interactions++;
    if (node->kind == BODY)
        return;
    const struct inner *inner = (const struct inner *)node;
    double fifth = 1 / (square * square * distance), along[3], both = 0;
    for (int i = 0; i < 3; i++) {
        along[i] = inner->quad[i][0] * off[0] + inner->quad[i][1] * off[1] + inner->quad[i][2] * off[2];
        both += along[i] * off[i];
    }
    double quad_phi = 0.5 * fifth * both;
    me->phi -= quad_phi;
    for (int i = 0; i < 3; i++)
        me->acc[i] += 5 * quad_phi / square * off[i] - fifth * along[i];
}

/* Takes the node as a whole if it is far enough for the square of its side; else its parts. */
static void walk(struct worker *me, struct node *node, double side)
{
    double off[3], square = 0;
    for (int i = 0; i < 3; i++) {
        off[i] = node->pos[i] - me->pos[i];
        square += off[i] * off[i];
    }
    if (tolerance * tolerance * square >= side) {
        attract(me, node, off, square);
    } else if (node->kind == CELL) {
        for (int octant = 0; octant < 8; octant++) {
            _Atomic(struct node *) *slot = &((struct cell *)node)->child[octant];
            struct node *child = atomic_load_explicit(slot, memory_order_relaxed);
            if (child)
                walk(me, child, side / 4);
        }
    } else {
        struct leaf *leaf = (struct leaf *)node;
        for (int n = 0; n < leaf->inner.bodies; n++)
            if (leaf->body[n] != me->self)
                walk(me, leaf->body[n], 0);
    }
}

/* The cost of this step goes to a field of its own: other threads may still read that of the last step. */
static void forces(struct worker *me, int first)
{
    for (int n = 0; n < me->body_count; n++) {
        struct body *body = me->my_bodies[n];
        me->self = &body->node;
        memcpy(me->pos, body->node.pos, sizeof me->pos);
        memset(me->acc, 0, sizeof me->acc);
        me->phi = 0;
        me->interactions = 0;
        walk(me, &common->root->inner.node, me->side * me->side);
        for (int i = 0; i < 3; i++) {
            if (!first)
                body->vel[i] += (me->acc[i] - body->acc[i]) * (time_step / 2);
            body->acc[i] = me->acc[i];
        }
        body->phi = me->phi;
        body->node.spare = me->interactions;
    }
}

static void advance(struct worker *me)
{
    double low[3], high[3];
    bounds_reset(low, high);
    for (int n = 0; n < me->body_count; n++) {
        struct body *body = me->my_bodies[n];
        body->node.cost = body->node.spare;
        for (int i = 0; i < 3; i++) {
            double change = body->acc[i] * (time_step / 2);
            double between = body->vel[i] + change;
            body->node.pos[i] += between * time_step;
            body->vel[i] = between + change;
        }
        bounds_widen(low, high, body->node.pos, body->node.pos);
    }
    lock_take(&common->bounds_lock);
    bounds_widen(common->low, common->high, low, high);
    lock_release(&common->bounds_lock);
}

static void step(struct worker *me, int first)
{
    take_box(me);
    me->cell_count = me->leaf_count = 0;
    if (me->id == 0)
        common->root = new_cell(me, NULL, GRID / 2, 0);
    sync_all();
    if (me->id == 0)
        bounds_reset(common->low, common->high);
    me->last_cell = common->root;
    for (int n = 0; n < me->body_count; n++)
        insert(me, me->my_bodies[n]);
    sync_all();
    moments(me);
    sync_all();
    find_zone(me);
    forces(me, first);
    sync_all();
    advance(me);
    sync_all();
}

/* A sum over a sawtooth of all places and velocities: a body off by 1e-7 shows; rounding does not. */
static double check(void)
{
    double sum = 0;
    for (int n = 0; n < body_total; n++)
        for (int i = 0; i < 3; i++) {
            double pos = bodies[n].node.pos[i] * (1 << 20), vel = bodies[n].vel[i] * (1 << 20);
            sum += pos - floor(pos) + vel - floor(vel);
        }
    return sum;
}

static void work(int id)
{
    struct worker *me = &workers[id];
    uint64_t from = 0;
    sync_all();
    for (int n = 0; n < steps; n++) {
        if (id == 0 && n == UNTIMED)
            from = now_ns();
        step(me, n == 0);
    }
    uint64_t to = now_ns();
    if (id == 0)
        crew_report("barnes", threads, to - from, check());
}

/* Pools have SPLASH-2's sizes: half a leaf and a cell for each body. A list of all threads is one array. */
static void set_up(void)
{
    int leaves = body_total / 2;
    most_leaves = leaves / threads + EXTRA;
    most_cells = 2 * leaves / threads + EXTRA;
    most_bodies = (body_total + LEAF_BODIES * leaves) / threads + EXTRA;
    common = crew_memory(sizeof *common);
    cell_locks = crew_memory(CELL_LOCKS * sizeof *cell_locks);
    bodies = crew_memory((size_t)body_total * sizeof *bodies);
    struct body **body_lists = crew_memory((size_t)threads * (size_t)most_bodies * sizeof *body_lists);
    struct cell **cell_lists = crew_memory((size_t)threads * (size_t)most_cells * sizeof *cell_lists);
    struct leaf **leaf_lists = crew_memory((size_t)threads * (size_t)most_leaves * sizeof *leaf_lists);
    make_bodies();
    for (int id = 0; id < threads; id++) {
        struct worker *me = &workers[id];
        me->id = id;
        me->cells = crew_memory((size_t)most_cells * sizeof *me->cells);
        me->leaves = crew_memory((size_t)most_leaves * sizeof *me->leaves);
        me->my_bodies = body_lists + (size_t)id * (size_t)most_bodies;
        me->my_cells = cell_lists + (size_t)id * (size_t)most_cells;
        me->my_leaves = leaf_lists + (size_t)id * (size_t)most_leaves;
        int end = (int)((int64_t)body_total * (id + 1) / threads);
        for (int n = (int)((int64_t)body_total * id / threads); n < end; n++)
            me->my_bodies[me->body_count++] = &bodies[n];
    }
}

int main(int argc, char **argv)
{
    threads = crew_arg(argc, argv, 1, 1, CREW_MAX, 1);
    body_total = crew_arg(argc, argv, 2, 64, 262144, 16384);
    steps = crew_arg(argc, argv, 3, UNTIMED + 1, 1000, 4);
    set_up();
    crew_run(threads, work);
    return 0;
}
