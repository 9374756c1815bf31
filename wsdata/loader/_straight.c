/* Samples and other ranges out of open files, many in one call, with Python's lock given up.
 *
 * Why in C: between two reads of small samples Python's lock changes hands, and each change costs
 * about as much as a read. `straight` says what is asked for; nothing here is tried twice.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include <Python.h>
#include <dlfcn.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#define PIECE_BYTES ((size_t)1 << 17) /* fits into the cache of a core, beside its source */

/* XXH3 of the library that Python's xxhash carries; its types are opaque here. */
typedef struct {
    void *(*create)(void);
    int (*reset)(void *);
    int (*update)(void *, const void *, size_t);
    unsigned long long (*digest)(const void *);
    int (*release)(void *);
} Xxh3;

static Xxh3 xxh3;

typedef struct {
    int descriptor;
    long long offset;        /* of the sample in its file */
    Py_ssize_t length;       /* of the sample */
    Py_ssize_t start;        /* of its latents within it */
    Py_ssize_t id_at;        /* of its id in what is left once latents are cut out; so scale_at */
    Py_ssize_t scale_at;
    unsigned long long digest;
    const char *id;
    Py_ssize_t id_length;
    double seconds; /* told */
} Sample;

typedef struct {
    Py_buffer codes, scales; /* of all samples, one after the other */
    Py_ssize_t size, width;  /* bytes of one sample's in each */
    Py_ssize_t count;
    Sample *samples;
    void *state;
    char *rest; /* scratch memory for what is not latents */
} Batch;

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Read parts that lie in a row from an offset on, and digest them; return whether all came.
 *
 * With RWF_NOWAIT only what is in memory comes. */
static int is_digested(void *state, int descriptor, off_t offset, const struct iovec parts[3],
                       int flags)
{
    ssize_t wanted = 0;
    for (int i = 0; i < 3; i++)
        wanted += (ssize_t)parts[i].iov_len;
    if (preadv2(descriptor, parts, 3, offset, flags) != wanted)
        return 0;
    for (int i = 0; i < 3; i++)
        xxh3.update(state, parts[i].iov_base, parts[i].iov_len);
    return 1;
}

/* Read a sample: piece by piece as far as it is in memory, so that each is digested out of the
 * processor's cache; the rest with one read, for a disk. */
static int is_whole(Batch *batch, const Sample *sample, char *codes)
{
    size_t size = (size_t)batch->size, left = (size_t)sample->length - size, at = 0;
    size_t before = (size_t)sample->start; /* how much comes before the latents that are wanted */
    char *after = batch->rest + before;
    off_t offset = (off_t)sample->offset;
    struct iovec parts[3];
    xxh3.reset(batch->state);
    while (size - at > PIECE_BYTES) {
        parts[0] = (struct iovec){batch->rest, before};
        parts[1] = (struct iovec){codes + at, PIECE_BYTES};
        parts[2] = (struct iovec){after, 0};
        if (!is_digested(batch->state, sample->descriptor, offset, parts, RWF_NOWAIT))
            break;
        offset += (off_t)(before + PIECE_BYTES);
        at += PIECE_BYTES;
        before = 0;
    }
    parts[0] = (struct iovec){batch->rest, before};
    parts[1] = (struct iovec){codes + at, size - at};
    parts[2] = (struct iovec){after, left - (size_t)sample->start};
    return is_digested(batch->state, sample->descriptor, offset, parts, 0) &&
           xxh3.digest(batch->state) == sample->digest;
}

/* Whether a sample was there, whole and right. */
static int is_read(Batch *batch, Py_ssize_t index)
{
    Sample *sample = &batch->samples[index];
    double began = now_s();
    if (!is_whole(batch, sample, (char *)batch->codes.buf + index * batch->size))
        return 0;
    if (memcmp(batch->rest + sample->id_at, sample->id, (size_t)sample->id_length) != 0)
        return 0;
    memcpy((char *)batch->scales.buf + index * batch->width, batch->rest + sample->scale_at,
           (size_t)batch->width);
    sample->seconds = now_s() - began;
    return 1;
}

/* Take over what is asked of one sample; return how much is left of it besides latents, or -1. */
static Py_ssize_t take_sample(Batch *batch, Sample *sample, PyObject *item)
{
    Py_ssize_t left;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a sample is not a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "iLnnnnKs#", &sample->descriptor, &sample->offset, &sample->length,
                          &sample->start, &sample->id_at, &sample->scale_at, &sample->digest,
                          &sample->id, &sample->id_length))
        return -1;
    left = sample->length - batch->size;
    if (sample->start < 0 || sample->start > left || sample->id_at < 0 ||
        sample->id_at > left - sample->id_length || sample->scale_at < 0 ||
        sample->scale_at > left - batch->width) {
        PyErr_Format(PyExc_ValueError, "sample %s: parts lie outside of its %zd bytes", sample->id,
                     sample->length);
        return -1;
    }
    return left;
}

static int take_samples(Batch *batch, PyObject *list)
{
    Py_ssize_t most = 0;
    batch->count = PyList_GET_SIZE(list);
    if (batch->count == 0)
        return 0;
    batch->size = batch->codes.len / batch->count;
    batch->width = batch->scales.len / batch->count;
    batch->samples = PyMem_Calloc((size_t)batch->count, sizeof(Sample));
    batch->state = xxh3.create();
    if (batch->samples == NULL || batch->state == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        Py_ssize_t left = take_sample(batch, &batch->samples[i], PyList_GET_ITEM(list, i));
        if (left < 0)
            return -1;
        most = left > most ? left : most;
    }
    batch->rest = PyMem_Malloc((size_t)most + 1);
    if (batch->rest == NULL)
        PyErr_NoMemory();
    return batch->rest == NULL ? -1 : 0;
}

static PyObject *seconds_of(const Batch *batch, Py_ssize_t num_read)
{
    PyObject *list = PyList_New(num_read);
    for (Py_ssize_t i = 0; list != NULL && i < num_read; i++) {
        PyObject *seconds = PyFloat_FromDouble(batch->samples[i].seconds);
        if (seconds == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, seconds);
    }
    return list;
}

static PyObject *read_samples(PyObject *module, PyObject *arguments)
{
    Batch batch = {0};
    PyObject *list, *result = NULL;
    Py_ssize_t num_read = 0;
    if (xxh3.create == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "read_samples before bind");
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "O!w*w*", &PyList_Type, &list, &batch.codes, &batch.scales))
        return NULL;
    if (take_samples(&batch, list) == 0) {
        Py_BEGIN_ALLOW_THREADS
        while (num_read < batch.count && is_read(&batch, num_read))
            num_read++;
        Py_END_ALLOW_THREADS
        result = seconds_of(&batch, num_read);
    }
    if (batch.state != NULL)
        xxh3.release(batch.state);
    PyMem_Free(batch.rest);
    PyMem_Free(batch.samples);
    PyBuffer_Release(&batch.scales);
    PyBuffer_Release(&batch.codes);
    return result;
}

/* Ranges into memory of their own ------------------------------------------------------------- */

typedef struct {
    int descriptor;
    long long offset;
    Py_ssize_t length;
    unsigned long long digest;
    PyObject *bytes;
    double seconds;
} Range;

static int is_range_read(Range *range, void *state)
{
    char *buffer = PyBytes_AS_STRING(range->bytes);
    double began = now_s();
    if (pread(range->descriptor, buffer, (size_t)range->length, (off_t)range->offset) !=
        range->length)
        return 0;
    xxh3.reset(state);
    xxh3.update(state, buffer, (size_t)range->length);
    range->seconds = now_s() - began;
    return xxh3.digest(state) == range->digest;
}

static int take_range(Range *range, PyObject *item)
{
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a range is not a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "iLnK", &range->descriptor, &range->offset, &range->length,
                          &range->digest))
        return -1;
    if (range->length < 0) {
        PyErr_Format(PyExc_ValueError, "a range of %zd bytes", range->length);
        return -1;
    }
    range->bytes = PyBytes_FromStringAndSize(NULL, range->length);
    return range->bytes == NULL ? -1 : 0;
}

static PyObject *told_of_ranges(const Range *ranges, Py_ssize_t num_read)
{
    PyObject *list = PyList_New(num_read);
    for (Py_ssize_t i = 0; list != NULL && i < num_read; i++) {
        PyObject *item = Py_BuildValue("Od", ranges[i].bytes, ranges[i].seconds);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    return list;
}

static PyObject *read_ranges(PyObject *module, PyObject *list)
{
    PyObject *result = NULL;
    Py_ssize_t count, taken = 0, num_read = 0;
    Range *ranges;
    void *state;
    if (xxh3.create == NULL || !PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "expected a list of ranges, after bind");
        return NULL;
    }
    count = PyList_GET_SIZE(list);
    state = xxh3.create();
    ranges = PyMem_Calloc((size_t)count + 1, sizeof(Range));
    if (ranges == NULL || state == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    while (taken < count) {
        if (take_range(&ranges[taken], PyList_GET_ITEM(list, taken)) < 0)
            goto done;
        taken++;
    }
    Py_BEGIN_ALLOW_THREADS
    while (num_read < count && is_range_read(&ranges[num_read], state))
        num_read++;
    Py_END_ALLOW_THREADS
    result = told_of_ranges(ranges, num_read);
done:
    for (Py_ssize_t i = 0; i < taken; i++)
        Py_XDECREF(ranges[i].bytes);
    if (state != NULL)
        xxh3.release(state);
    PyMem_Free(ranges);
    return result;
}

static PyObject *bind(PyObject *module, PyObject *path)
{
    const char *name = PyUnicode_AsUTF8(path);
    void *library;
    if (name == NULL)
        return NULL;
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL); /* loaded already; kept for good */
    if (library != NULL) {
        Xxh3 found;
        *(void **)&found.create = dlsym(library, "XXH3_createState");
        *(void **)&found.reset = dlsym(library, "XXH3_64bits_reset");
        *(void **)&found.update = dlsym(library, "XXH3_64bits_update_dispatch"); /* by the CPU */
        if (found.update == NULL)
            *(void **)&found.update = dlsym(library, "XXH3_64bits_update");
        *(void **)&found.digest = dlsym(library, "XXH3_64bits_digest");
        *(void **)&found.release = dlsym(library, "XXH3_freeState");
        if (found.create && found.reset && found.update && found.digest && found.release)
            xxh3 = found; /* all or nothing */
    }
    return PyBool_FromLong(xxh3.create != NULL);
}

static PyMethodDef methods[] = {
    {"bind", bind, METH_O, "Take XXH3 from a shared library; return whether it has it."},
    {"read_samples", read_samples, METH_VARARGS,
     "Read samples in turn until one is not as it should be; return the seconds each took."},
    {"read_ranges", read_ranges, METH_O,
     "Read ranges in turn until one is not as it should be; return bytes and seconds of each."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "wsdata.loader._straight", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__straight(void)
{
    return PyModule_Create(&definition);
}
