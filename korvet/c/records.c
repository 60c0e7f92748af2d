/* Records read from format `record`, taken apart and encoded: the loops over records of a fetch, in C.

   No code of Python runs within these loops, so no list changes under them: only exact bytes, int, list and tuple, and
   columns, are looked at, and what is allocated is allocated before. */

#include "native.h"

#define BATCH_BYTES_MAX INT32_MAX /* Kafka's length of a batch is an int32 */

/* --- parse_timestamps --------------------------------------------------------------------------------------------- */

/* Find what a column, or a list of bytes, holds at `at`; 0 if that is something else. */
static inline int find_content(PyObject *column, Py_ssize_t at, const char **text, Py_ssize_t *size)
{
    if (Py_IS_TYPE(column, &Column_Type)) {
        Part part = column_part(column, at);
        *text = data_of(((Column *)column)->data) + part.at;
        *size = part.size;
        return 1;
    }
    PyObject *content = PyList_GET_ITEM(column, at);
    if (!PyBytes_CheckExact(content))
        return 0;
    *text = PyBytes_AS_STRING(content);
    *size = PyBytes_GET_SIZE(content);
    return 1;
}

static Py_ssize_t column_length(PyObject *column)
{
    if (Py_IS_TYPE(column, &Column_Type))
        return ((Column *)column)->count;
    return PyList_CheckExact(column) ? PyList_GET_SIZE(column) : -1;
}

PyDoc_STRVAR(parse_timestamps_doc, "parse_timestamps(column, /)\n--\n\n"
    "Return the numbers (ms); None if one has other characters than digits, or more than 18.");

static PyObject *parse_timestamps(PyObject *Py_UNUSED(module), PyObject *column)
{
    Py_ssize_t count = column_length(column);
    if (count < 0)
        Py_RETURN_NONE;
    PyObject *numbers = PyList_New(count);
    const char *before = NULL;
    Py_ssize_t size_before = 0;
    for (Py_ssize_t at = 0; numbers && at < count; at++) {
        const char *text;
        Py_ssize_t size;
        int64_t number = find_content(column, at, &text, &size) ? parse_digits(text, size) : -1;
        if (number < 0) {
            Py_DECREF(numbers);
            Py_RETURN_NONE;
        }
        int same = before && size == size_before && !memcmp(text, before, size);
        PyObject *parsed = same ? Py_NewRef(PyList_GET_ITEM(numbers, at - 1)) : PyLong_FromLongLong(number);
        if (!parsed)
            Py_CLEAR(numbers);
        else
            PyList_SET_ITEM(numbers, at, parsed);
        before = text;
        size_before = size;
    }
    return numbers;
}

/* --- encode_records ----------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject *runs, *times, *contents, *following; /* borrowed */
    int64_t first_time;
    Py_ssize_t run;                                /* the run of the next record, and its offset delta */
    int64_t delta, stop;
} Records;

static uint64_t zigzag(int64_t number)
{
    return ((uint64_t)number << 1) ^ (number < 0 ? UINT64_MAX : 0);
}

static int varint_size(uint64_t number)
{
    int size = 1;
    for (; number > 0x7F; number >>= 7)
        size++;
    return size;
}

static char *put_varint(char *to, uint64_t number)
{
    for (; number > 0x7F; number >>= 7)
        *to++ = (char)(number | 0x80);
    *to++ = (char)number;
    return to;
}

static char *put_bytes(char *to, const char *content, Py_ssize_t size)
{
    memcpy(to, content, size);
    return to + size;
}

static int as_int64(PyObject *number, int64_t *to)
{
    int overflow = 1;
    if (PyLong_CheckExact(number))
        *to = PyLong_AsLongLongAndOverflow(number, &overflow);
    return !overflow;
}

/* Go to the next offset delta; 0 if there is none, or one below that before. */
static int next_delta(Records *records)
{
    if (++records->delta < records->stop)
        return 1;
    int64_t before = records->delta - 1;
    if (++records->run >= PyList_GET_SIZE(records->runs))
        return 0;
    PyObject *run = PyList_GET_ITEM(records->runs, records->run);
    return PyTuple_CheckExact(run) && PyTuple_GET_SIZE(run) == 2 && as_int64(PyTuple_GET_ITEM(run, 0), &records->delta)
        && as_int64(PyTuple_GET_ITEM(run, 1), &records->stop) && records->delta > before
        && records->stop > records->delta && records->stop <= (int64_t)1 << 31;
}

static int time_delta(Records *records, Py_ssize_t at, int64_t *delta)
{
    int64_t time;
    return as_int64(PyList_GET_ITEM(records->times, at), &time)
        && !__builtin_sub_overflow(time, records->first_time, delta);
}

/* Return the size of a record without its length; -1 if it is not for this code. */
static int64_t body_size(Records *records, Py_ssize_t at)
{
    int64_t delta, size = 1;
    if (!next_delta(records) || !time_delta(records, at, &delta))
        return -1;
    size += varint_size(zigzag(delta)) + varint_size(zigzag(records->delta));
    for (Py_ssize_t field = 0; field < PyList_GET_SIZE(records->contents); field++) {
        PyObject *column = PyList_GET_ITEM(records->contents, field);
        Py_ssize_t length = 0;
        if (column == Py_None) {
            size += 1;
        } else {
            const char *content;
            if (!find_content(column, at, &content, &length) || length > BATCH_BYTES_MAX)
                return -1;
            size += varint_size(zigzag(length)) + length;
        }
        size += PyBytes_GET_SIZE(PyList_GET_ITEM(records->following, field));
        if (size > BATCH_BYTES_MAX)
            return -1;
    }
    return size;
}

static char *put_body(char *to, Records *records, Py_ssize_t at)
{
    int64_t delta = 0;
    time_delta(records, at, &delta);
    *to++ = 0; /* attributes */
    to = put_varint(put_varint(to, zigzag(delta)), zigzag(records->delta));
    for (Py_ssize_t field = 0; field < PyList_GET_SIZE(records->contents); field++) {
        PyObject *column = PyList_GET_ITEM(records->contents, field);
        if (column == Py_None) {
            *to++ = 1; /* -1 */
        } else {
            const char *content = NULL;
            Py_ssize_t length = 0;
            find_content(column, at, &content, &length);
            to = put_bytes(put_varint(to, zigzag(length)), content, length);
        }
        PyObject *after = PyList_GET_ITEM(records->following, field);
        to = put_bytes(to, PyBytes_AS_STRING(after), PyBytes_GET_SIZE(after));
    }
    return to;
}

static int are_records(Records *records)
{
    if (!PyList_CheckExact(records->runs) || !PyList_CheckExact(records->times)
        || !PyList_CheckExact(records->contents) || !PyList_CheckExact(records->following))
        return 0;
    Py_ssize_t count = PyList_GET_SIZE(records->times), width = PyList_GET_SIZE(records->contents);
    if (!count || PyList_GET_SIZE(records->following) != width
        || !as_int64(PyList_GET_ITEM(records->times, 0), &records->first_time))
        return 0;
    for (Py_ssize_t field = 0; field < width; field++) {
        PyObject *column = PyList_GET_ITEM(records->contents, field);
        PyObject *after = PyList_GET_ITEM(records->following, field);
        if (!PyBytes_CheckExact(after) || PyBytes_GET_SIZE(after) > BATCH_BYTES_MAX)
            return 0;
        if (column != Py_None && column_length(column) != count)
            return 0;
    }
    return 1;
}

PyDoc_STRVAR(encode_records_doc, "encode_records(runs, times, contents, following, bytes_max, least, /)\n--\n\n"
    "Return as many records as fit, at least `least`, how many, and the last offset delta; None leaves it to Python.");

static PyObject *encode_records(PyObject *Py_UNUSED(module), PyObject *args)
{
    Records records = {.run = -1, .delta = -1, .stop = -1};
    Py_ssize_t bytes_max, least, taken = 0, total = 0;
    if (!PyArg_ParseTuple(args, "OOOOnn", &records.runs, &records.times, &records.contents, &records.following,
            &bytes_max, &least))
        return NULL;
    if (!are_records(&records))
        Py_RETURN_NONE;
    Py_ssize_t count = PyList_GET_SIZE(records.times);
    int64_t last_delta = -1;
    for (; taken < count; taken++) {
        int64_t size = body_size(&records, taken);
        if (size < 0)
            Py_RETURN_NONE;
        size += varint_size(zigzag(size));
        if (taken >= least && total + size > bytes_max)
            break;
        if ((total += size) > BATCH_BYTES_MAX)
            Py_RETURN_NONE;
        last_delta = records.delta;
    }
    PyObject *encoded = PyBytes_FromStringAndSize(NULL, total); /* collects no garbage: the records stay as they are */
    if (!encoded)
        return NULL;
    char *to = PyBytes_AS_STRING(encoded);
    records.run = records.delta = records.stop = -1;
    for (Py_ssize_t at = 0; at < taken; at++) {
        int64_t size = body_size(&records, at);
        to = put_body(put_varint(to, zigzag(size)), &records, at);
    }
    return Py_BuildValue("NnL", encoded, taken, (long long)last_delta);
}

PyDoc_STRVAR(split_entries_doc, "split_entries(entries, /)\n--\n\n"
    "Return the ids, the names of the fields and a column for each; None if the entries differ in their fields.");
PyDoc_STRVAR(parse_runs_doc, "parse_runs(ids, bits, end, /)\n--\n\n"
    "Return the offsets, in runs without gaps; None if they do not rise, or one is no offset below `end`.");
PyDoc_STRVAR(read_batches_doc, "read_batches(entries, end, kind, decompress, /)\n--\n\n"
    "Return the batches below offset `end`, each as a `kind`; None if an entry is none, or damaged.");

static PyMethodDef methods[] = {
    {"encode_records", encode_records, METH_VARARGS, encode_records_doc},
    {"parse_runs", parse_runs, METH_VARARGS, parse_runs_doc},
    {"parse_timestamps", parse_timestamps, METH_O, parse_timestamps_doc},
    {"read_batches", read_batches, METH_VARARGS, read_batches_doc},
    {"split_entries", split_entries, METH_O, split_entries_doc},
    {NULL, NULL, 0, NULL},
};

static int add_types(PyObject *module)
{
    return PyModule_AddType(module, &Entries_Type) || PyModule_AddType(module, &Column_Type)
        || PyModule_AddType(module, &Reader_Type);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_types}, {0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "native",
    .m_doc = "Loops over replies, entries and records, in C.", .m_size = 0, .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit_native(void)
{
    return PyModuleDef_Init(&module);
}
