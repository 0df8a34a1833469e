/* Stands in for NVIDIA's driver where there is no GPU, so that what calls it can be run.
 *
 * Device memory is the process's own and all work is done at once, in the call that issues it.
 * Kernels do nothing but take as long as `spin` was told to. A capture records copies and kernels
 * instead; one in which nothing was issued, as by a session on the processor, holds NODES kernels.
 * With FAKE_NODE_US in the environment each node of a graph that is launched takes so long, one behind
 * the other on the whole device: its effect is there at once, the events behind it are not.
 * What is not made, is closed twice, or belongs to something that was closed, is refused; what is
 * alive is counted (fake_alive), and one call can be told to fail (fake_fail).
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OK 0
#define INVALID 1
#define NO_DEVICE 100
#define NOT_READY 600
#define HANDLE 400
#define CAPTURING 900
#define NOT_CAPTURING 901
#define NODES 7
#define MULTIPROCESSORS 4

typedef struct thing {
    int kind; /* one of the letters below, 0 once it is closed */
    struct thing *next, *of; /* of: a node's graph */
    int priority, is_capturing, type, is_of_host;
    double at_ms; /* an event's; when a stream is done */
    uint64_t spin_ns;
    void *to;
    const void *from;
    size_t size;
    struct thing **nodes; /* of what can be launched */
    size_t count;
    int mark; /* that it is one of these */
} thing;

#define MARK 0x5eed

static thing *things;
static int failing;
static char failing_name[64];

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static double node_ms(void) {
    static double found = -1;
    if (found < 0) found = getenv("FAKE_NODE_US") ? atof(getenv("FAKE_NODE_US")) / 1e3 : 0;
    return found;
}

static double busy_until_ms;

static void pass(double until_ms) {
    while (now_ms() < until_ms) {}
}

static thing *make(int kind) {
    thing *made = calloc(1, sizeof *made);
    made->kind = kind;
    made->mark = MARK;
    made->next = things;
    return things = made;
}

/* Things are never freed, so that a handle of a closed one can be looked at. */
static thing *is(void *handle, int kind) {
    thing *found = handle;
    return found && found->mark == MARK && found->kind == kind ? found : NULL;
}

static int end(void *handle, int kind) {
    thing *found = is(handle, kind);
    if (!found) return HANDLE;
    found->kind = 0;
    return OK;
}

int fake_alive(int kind) {
    int count = 0;
    for (thing *each = things; each; each = each->next) count += each->kind == kind;
    return count;
}

void fake_fail(const char *function, int result) {
    strncpy(failing_name, function, sizeof failing_name - 1);
    failing = result;
}

#define MAY_FAIL                                                                                   \
    if (failing && !strcmp(failing_name, __func__)) {                                              \
        int result = failing;                                                                      \
        failing = 0;                                                                               \
        return result;                                                                             \
    }

static int issue(void *stream, thing what) {
    thing *s = stream ? is(stream, 'S') : NULL;
    if (stream && !s) return HANDLE;
    if (s && s->is_capturing) {
        thing *node = make('N');
        thing *next = node->next;
        *node = what;
        node->mark = MARK;
        node->kind = 'N';
        node->next = next;
        node->of = s;
        node->priority = s->priority;
        return OK;
    }
    if (what.size) memmove(what.to, what.from, what.size);
    double until = now_ms() + what.spin_ns / 1e6;
    while (what.spin_ns && now_ms() < until) {}
    return OK;
}

int cuInit(unsigned flags) { MAY_FAIL return getenv("FAKE_NO_DEVICE") ? NO_DEVICE : OK; }
int cuDriverGetVersion(int *version) { *version = 13000; return OK; }
int cuDeviceGetCount(int *count) { *count = 1; return OK; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? 101 : OK; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "fake", size); return OK; }

int cuGetErrorName(int number, const char **name) {
    *name = number == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : number == 2 ? "CUDA_ERROR_OUT_OF_MEMORY"
          : number == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : NULL;
    return *name ? OK : INVALID;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 16 ? MULTIPROCESSORS : attribute == 75 ? 9 : 0;
    return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device) { MAY_FAIL *context = make('C'); return OK; }
int cuDevicePrimaryCtxRelease_v2(int device) {
    for (thing *each = things; each; each = each->next)
        if (each->kind == 'C') { each->kind = 0; return OK; }
    return INVALID;
}
int cuCtxGetCurrent(void **context) {
    *context = NULL;
    for (thing *each = things; each; each = each->next)
        if (each->kind == 'C') *context = each;
    return OK;
}
int cuCtxSetCurrent(void *context) { return is(context, 'C') ? OK : INVALID; }
int cuCtxGetStreamPriorityRange(int *least, int *most) { *least = 0; *most = -5; return OK; }
int cuCtxSynchronize(void) { MAY_FAIL return OK; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = 3u << 29; *total = 1u << 31; return OK; }

int cuMemAlloc_v2(void **memory, size_t size) {
    MAY_FAIL
    thing *made = make('M');
    made->to = *memory = aligned_alloc(256, (size + 255) / 256 * 256);
    return OK;
}
int cuMemFree_v2(void *memory) {
    for (thing *each = things; each; each = each->next)
        if (each->kind == 'M' && each->to == memory) {
            each->kind = 0;
            free(memory);
            return OK;
        }
    return INVALID;
}
int cuMemHostAlloc(void **memory, size_t size, unsigned flags) { return cuMemAlloc_v2(memory, size); }
int cuMemFreeHost(void *memory) { return cuMemFree_v2(memory); }
int cuMemHostRegister_v2(void *memory, size_t size, unsigned flags) {
    MAY_FAIL
    make('R')->to = memory;
    return OK;
}
int cuMemHostUnregister(void *memory) {
    for (thing *each = things; each; each = each->next)
        if (each->kind == 'R' && each->to == memory) { each->kind = 0; return OK; }
    return 713;
}

int cuMemHostGetDevicePointer_v2(void **found, void *memory, unsigned flags) {
    for (thing *each = things; each; each = each->next)
        if (each->kind == 'R' && each->to == memory) { *found = memory; return OK; }
    return INVALID;
}

static int copy(void *to, const void *from, size_t size, void *stream) {
    return issue(stream, (thing){.type = 1, .to = to, .from = from, .size = size});
}
int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t size, void *stream) {
    MAY_FAIL
    return issue(stream, (thing){.type = 1, .to = to, .from = from, .size = size, .is_of_host = 1});
}
int cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t size, void *stream) {
    MAY_FAIL
    return copy(to, from, size, stream);
}
int cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t size, void *stream) {
    return copy(to, from, size, stream);
}

int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    MAY_FAIL
    thing *made = *stream = make('S');
    made->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    return OK;
}
int cuStreamDestroy_v2(void *stream) { return end(stream, 'S'); }
int cuStreamSynchronize(void *stream) {
    MAY_FAIL
    thing *s = is(stream, 'S');
    if (s && !s->is_capturing) pass(s->at_ms);
    return !s ? HANDLE : s->is_capturing ? CAPTURING : OK;
}
int cuStreamQuery(void *stream) {
    MAY_FAIL
    thing *s = is(stream, 'S');
    return !s ? HANDLE : now_ms() < s->at_ms ? NOT_READY : OK;
}
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    return is(stream, 'S') && is(event, 'E') ? OK : HANDLE;
}
int cuStreamBeginCapture_v2(void *stream, int mode) {
    thing *s = is(stream, 'S');
    if (!s) return HANDLE;
    s->is_capturing = 1;
    return OK;
}
int cuStreamEndCapture(void *stream, void **graph) {
    *graph = NULL;
    MAY_FAIL
    thing *s = is(stream, 'S');
    if (!s || !s->is_capturing) return s ? NOT_CAPTURING : HANDLE;
    int captured = 0;
    for (thing *each = things; each; each = each->next) captured += each->kind == 'N' && each->of == s;
    for (int i = captured ? NODES : 0; i < NODES; i++) issue(stream, (thing){.type = 0});
    s->is_capturing = 0;
    thing *made = *graph = make('G');
    for (thing *each = things; each; each = each->next)
        if (each->kind == 'N' && each->of == s) each->of = made;
    return OK;
}

int cuEventCreate(void **event, unsigned flags) { *event = make('E'); return OK; }
int cuEventDestroy_v2(void *event) { return end(event, 'E'); }
int cuEventRecord(void *event, void *stream) {
    thing *e = is(event, 'E');
    if (!e || (stream && !is(stream, 'S'))) return HANDLE;
    thing *s = stream ? is(stream, 'S') : NULL;
    e->at_ms = now_ms();
    if (s && s->at_ms > e->at_ms) e->at_ms = s->at_ms;
    return OK;
}
int cuEventQuery(void *event) {
    MAY_FAIL
    thing *e = is(event, 'E');
    return !e ? HANDLE : now_ms() < e->at_ms ? NOT_READY : OK;
}
int cuEventSynchronize(void *event) {
    MAY_FAIL
    thing *e = is(event, 'E');
    if (e) pass(e->at_ms);
    return e ? OK : HANDLE;
}
int cuEventElapsedTime(float *ms, void *before, void *after) {
    thing *b = is(before, 'E'), *a = is(after, 'E');
    if (!b || !a || !b->at_ms || !a->at_ms) return HANDLE;
    *ms = a->at_ms - b->at_ms;
    return OK;
}

int cuModuleLoadData(void **module, const void *image) { *module = make('L'); return OK; }
int cuModuleUnload(void *module) { return end(module, 'L'); }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    if (!is(module, 'L')) return HANDLE;
    thing *made = *function = make('F');
    made->type = !strcmp(name, "spin") ? 1 : !strcmp(name, "mark") ? 2 : 0;
    return made->type ? OK : 500;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **arguments, void **extra) {
    MAY_FAIL
    thing *f = is(function, 'F');
    if (!f) return HANDLE;
    if (f->type == 1) return issue(stream, (thing){.spin_ns = *(uint64_t *)arguments[0]});
    static const uint32_t one = 1;
    return issue(stream, (thing){.to = *(void **)arguments[0], .from = &one, .size = sizeof one});
}

/* Nodes lie newest first, so graphs are told and run backwards through the list. */
static size_t nodes_of(thing *graph, thing **nodes) {
    size_t count = 0;
    for (thing *each = things; each; each = each->next) count += each->kind == 'N' && each->of == graph;
    size_t at = count;
    for (thing *each = things; nodes && each; each = each->next)
        if (each->kind == 'N' && each->of == graph) nodes[--at] = each;
    return count;
}
int cuGraphGetNodes(void *graph, void **nodes, size_t *count) {
    thing *g = is(graph, 'G');
    if (!g) return HANDLE;
    *count = nodes_of(g, (thing **)nodes);
    return OK;
}
int cuGraphGetEdges_v2(void *graph, void **from, void **to, void *data, size_t *count) {
    thing *g = is(graph, 'G');
    if (!g) return HANDLE;
    size_t nodes = nodes_of(g, NULL);
    *count = nodes ? nodes - 1 : 0;
    if (!from) return OK;
    thing **found = calloc(nodes, sizeof *found);
    nodes_of(g, found);
    for (size_t i = 0; i + 1 < nodes; i++) { from[i] = found[i]; to[i] = found[i + 1]; }
    free(found);
    return OK;
}
int cuGraphNodeGetType(void *node, int *type) {
    thing *n = is(node, 'N');
    if (!n) return HANDLE;
    *type = n->type;
    return OK;
}
int cuGraphKernelNodeGetAttribute(void *node, int attribute, int *value) {
    thing *n = is(node, 'N');
    if (!n || n->type) return INVALID;
    *value = n->priority;
    return OK;
}
static thing *clone(thing *graph, int kind) {
    size_t count = nodes_of(graph, NULL);
    thing **nodes = calloc(count + 1, sizeof *nodes), *made = make(kind);
    nodes_of(graph, nodes);
    for (size_t i = 0; i < count; i++) {
        thing *node = make('N'), *next = node->next;
        *node = *nodes[i];
        node->next = next;
        node->of = made;
        nodes[i] = node;
    }
    made->nodes = nodes;
    made->count = count;
    return made;
}
static int end_graph(void *graph, int kind) {
    for (thing *each = things; each; each = each->next)
        if (each->kind == 'N' && each->of == graph) each->kind = 0;
    return end(graph, kind);
}
int cuGraphCreate(void **made, unsigned flags) {
    MAY_FAIL
    *made = make('G');
    return OK;
}
/* A kernel's parameters are its node, and so is what a fill's are. */
int cuGraphKernelNodeGetParams_v2(void *node, void **found) {
    thing *n = is(node, 'N');
    if (!n || n->type != 0) return INVALID;
    *found = n;
    return OK;
}
static int add(void **made, void *graph, void **before, size_t count, thing what) {
    if (!is(graph, 'G')) return HANDLE;
    for (size_t i = 0; i < count; i++) {
        thing *b = is(before[i], 'N');
        if (!b || b->of != graph) return INVALID;
    }
    thing *node = *made = make('N'), *next = node->next;
    *node = what;
    node->mark = MARK;
    node->kind = 'N';
    node->next = next;
    node->of = graph;
    return OK;
}
int cuGraphAddKernelNode_v2(void **made, void *graph, void **before, size_t count, void **what) {
    MAY_FAIL
    thing *like = is(*what, 'N');
    if (!like) return INVALID;
    int result = add(made, graph, before, count, *like);
    if (!result) ((thing *)*made)->priority = 0;
    return result;
}
int cuGraphKernelNodeCopyAttributes(void *to, void *from) {
    if (!is(to, 'N') || !is(from, 'N')) return HANDLE;
    ((thing *)to)->priority = ((thing *)from)->priority;
    return OK;
}
typedef struct {
    size_t x, y, z, level;
    unsigned type;
    const void *host;
    void *device, *array, *reserved;
    size_t pitch, height;
} place;
typedef struct { place from, to; size_t width, height, depth; } copy3d;
int cuGraphMemcpyNodeGetParams(void *node, copy3d *found) {
    thing *n = is(node, 'N');
    if (!n || n->type != 1) return INVALID;
    memset(found, 0, sizeof *found);
    found->from.type = n->is_of_host ? 1 : 2;
    found->from.host = n->is_of_host ? n->from : NULL;
    found->from.device = n->is_of_host ? NULL : (void *)n->from;
    found->to.type = 2;
    found->to.device = n->to;
    found->width = n->size;
    found->height = found->depth = 1;
    return OK;
}
int cuGraphAddMemcpyNode(void **made, void *graph, void **before, size_t count, const copy3d *what,
                         void *context) {
    if (!is(context, 'C') || what->height != 1 || what->depth != 1) return INVALID;
    const void *from = what->from.type == 1 ? what->from.host : what->from.device;
    return add(made, graph, before, count,
               (thing){.type = 1, .to = what->to.device, .from = from, .size = what->width,
                       .is_of_host = what->from.type == 1});
}
int cuGraphDestroy(void *graph) { return end_graph(graph, 'G'); }
int cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags) {
    MAY_FAIL
    if (!is(graph, 'G')) return HANDLE;
    *made = clone(graph, 'X');
    return OK;
}
int cuGraphUpload(void *made, void *stream) { return is(made, 'X') ? OK : HANDLE; }
int cuGraphLaunch(void *made, void *stream) {
    MAY_FAIL
    thing *x = is(made, 'X'), *s = is(stream, 'S');
    if (!x || !s || s->is_capturing) return HANDLE;
    for (size_t i = 0; i < x->count; i++) issue(stream, *x->nodes[i]);
    if (node_ms()) {
        double begun = now_ms() > busy_until_ms ? now_ms() : busy_until_ms;
        s->at_ms = busy_until_ms = begun + x->count * node_ms();
    }
    return OK;
}
int cuGraphExecDestroy(void *made) { return end_graph(made, 'X'); }

typedef struct { int type; char padding[92]; unsigned multiprocessors; char rest[44]; } resource;
int cuDeviceGetDevResource(int device, resource *found, int type) {
    memset(found, 0, sizeof *found);
    found->type = type;
    found->multiprocessors = MULTIPROCESSORS;
    return OK;
}
int cuDevSmResourceSplitByCount(resource *groups, unsigned *count, const resource *all, resource *rest,
                                unsigned flags, unsigned least) {
    if (*count != 1 || least > all->multiprocessors) return INVALID;
    *groups = *rest = *all;
    groups->multiprocessors = least;
    rest->multiprocessors = all->multiprocessors - least;
    return OK;
}
int cuDevResourceGenerateDesc(void **made, resource *of, unsigned count) { *made = make('D'); return OK; }
int cuGreenCtxCreate(void **made, void *of, int device, unsigned flags) {
    if (!is(of, 'D') || flags != 1) return INVALID;
    *made = make('P');
    return OK;
}
int cuGreenCtxDestroy(void *context) { return end(context, 'P'); }
int cuGreenCtxStreamCreate(void **stream, void *context, unsigned flags, int priority) {
    if (!is(context, 'P') || flags != 1) return INVALID;
    return cuStreamCreateWithPriority(stream, flags, priority);
}
