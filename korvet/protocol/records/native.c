/* Records read from format `record`, taken apart and encoded: the loops over records of a fetch, in C.

   Optional: hatch_build.py compiles it with COMPILED=1, and everywhere else Python does the same (encoding.py and
   log/record_format.py). Whatever these functions were not made for they leave to Python, by returning None; the only
   errors that they raise are MemoryError, and TypeError and OverflowError for other arguments than functions call
   them with. No code of Python runs within their loops, so no list changes under them: only
   exact bytes, int, list and tuple are looked at, and what is allocated is allocated before. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define BATCH_BYTES_MAX INT32_MAX /* Kafka's length of a batch is an int32 */

/* --- split_entries ------------------------------------------------------------------------------------------------ */

static int is_pair(PyObject *entry)
{
    return (PyList_CheckExact(entry) || PyTuple_CheckExact(entry)) && PySequence_Fast_GET_SIZE(entry) == 2
        && PyBytes_CheckExact(PySequence_Fast_GET_ITEM(entry, 0))
        && PyList_CheckExact(PySequence_Fast_GET_ITEM(entry, 1));
}

static int same_bytes(PyObject *one, PyObject *other)
{
    Py_ssize_t size = PyBytes_GET_SIZE(one);
    return one == other
        || (size == PyBytes_GET_SIZE(other) && !memcmp(PyBytes_AS_STRING(one), PyBytes_AS_STRING(other), size));
}

/* Put one entry into row `at` of the columns; 0 if it has other fields than the first, `names`. */
static int split_entry(PyObject *entry, PyObject *names, PyObject *ids, PyObject *columns, Py_ssize_t at)
{
    if (!is_pair(entry))
        return 0;
    PyObject *fields = PySequence_Fast_GET_ITEM(entry, 1);
    Py_ssize_t width = PyList_GET_SIZE(names);
    if (PyList_GET_SIZE(fields) != 2 * width)
        return 0;
    for (Py_ssize_t field = 0; field < width; field++) {
        PyObject *name = PyList_GET_ITEM(fields, 2 * field), *content = PyList_GET_ITEM(fields, 2 * field + 1);
        if (!PyBytes_CheckExact(name) || !PyBytes_CheckExact(content)
            || !same_bytes(name, PyList_GET_ITEM(names, field)))
            return 0;
        PyList_SET_ITEM(PyList_GET_ITEM(columns, field), at, Py_NewRef(content));
    }
    PyList_SET_ITEM(ids, at, Py_NewRef(PySequence_Fast_GET_ITEM(entry, 0)));
    return 1;
}

PyDoc_STRVAR(split_entries_doc, "split_entries(entries, /)\n--\n\n"
    "Return the ids, the names of the fields and a column for each; None if the entries differ in their fields.");

static PyObject *split_entries(PyObject *Py_UNUSED(module), PyObject *entries)
{
    if (!PyList_CheckExact(entries) || !PyList_GET_SIZE(entries) || !is_pair(PyList_GET_ITEM(entries, 0)))
        Py_RETURN_NONE;
    Py_ssize_t count = PyList_GET_SIZE(entries);
    PyObject *fields = Py_NewRef(PySequence_Fast_GET_ITEM(PyList_GET_ITEM(entries, 0), 1));
    Py_ssize_t width = PyList_GET_SIZE(fields) / 2;
    PyObject *ids = PyList_New(count), *names = PyList_New(width), *columns = PyList_New(width), *found = NULL;
    int alike = ids && names && columns;
    for (Py_ssize_t field = 0; alike && field < width; field++) {
        PyObject *column = PyList_New(count);
        if (!column)
            goto done;
        PyList_SET_ITEM(columns, field, column);
    }
    if (!alike)
        goto done;
    /* Nothing is allocated from here on. */
    alike = PyList_GET_SIZE(entries) == count && PyList_GET_SIZE(fields) == 2 * width;
    for (Py_ssize_t field = 0; alike && field < width; field++) {
        PyObject *name = PyList_GET_ITEM(fields, 2 * field);
        alike = PyBytes_CheckExact(name);
        PyList_SET_ITEM(names, field, Py_NewRef(name));
    }
    for (Py_ssize_t at = 0; alike && at < count; at++)
        alike = split_entry(PyList_GET_ITEM(entries, at), names, ids, columns, at);
    found = alike ? PyTuple_Pack(3, ids, names, columns) : Py_NewRef(Py_None);
done:
    Py_DECREF(fields);
    Py_XDECREF(ids);
    Py_XDECREF(names);
    Py_XDECREF(columns);
    return found;
}

/* --- parse_timestamps --------------------------------------------------------------------------------------------- */

#define SAFE_DIGITS 18 /* of record_format.py: these stay within int64 */

static int64_t parsed(PyObject *text)
{
    Py_ssize_t size = PyBytes_GET_SIZE(text);
    int64_t number = 0;
    if (!size || size > SAFE_DIGITS)
        return -1;
    for (const char *digit = PyBytes_AS_STRING(text), *end = digit + size; digit < end; digit++) {
        if (*digit < '0' || *digit > '9')
            return -1;
        number = number * 10 + (*digit - '0');
    }
    return number;
}

PyDoc_STRVAR(parse_timestamps_doc, "parse_timestamps(column, /)\n--\n\n"
    "Return the numbers (ms); None if one has other characters than digits, or more than 18.");

static PyObject *parse_timestamps(PyObject *Py_UNUSED(module), PyObject *column)
{
    if (!PyList_CheckExact(column))
        Py_RETURN_NONE;
    Py_ssize_t count = PyList_GET_SIZE(column);
    PyObject *numbers = PyList_New(count);
    for (Py_ssize_t at = 0; numbers && at < count; at++) {
        PyObject *text = PyList_GET_ITEM(column, at), *number;
        if (!PyBytes_CheckExact(text) || parsed(text) < 0) {
            Py_DECREF(numbers);
            Py_RETURN_NONE;
        }
        if (at && same_bytes(text, PyList_GET_ITEM(column, at - 1)))
            number = Py_NewRef(PyList_GET_ITEM(numbers, at - 1));
        else
            number = PyLong_FromLongLong(parsed(text));
        if (!number)
            Py_CLEAR(numbers);
        else
            PyList_SET_ITEM(numbers, at, number);
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

static char *put_bytes(char *to, PyObject *bytes)
{
    memcpy(to, PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes));
    return to + PyBytes_GET_SIZE(bytes);
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
            PyObject *content = PyList_GET_ITEM(column, at);
            if (!PyBytes_CheckExact(content) || (length = PyBytes_GET_SIZE(content)) > BATCH_BYTES_MAX)
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
            PyObject *content = PyList_GET_ITEM(column, at);
            to = put_bytes(put_varint(to, zigzag(PyBytes_GET_SIZE(content))), content);
        }
        to = put_bytes(to, PyList_GET_ITEM(records->following, field));
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
        if (column != Py_None && (!PyList_CheckExact(column) || PyList_GET_SIZE(column) != count))
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

static PyMethodDef methods[] = {
    {"encode_records", encode_records, METH_VARARGS, encode_records_doc},
    {"parse_timestamps", parse_timestamps, METH_O, parse_timestamps_doc},
    {"split_entries", split_entries, METH_O, split_entries_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "native", .m_doc = "Loops over records, in C.", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit_native(void)
{
    return PyModuleDef_Init(&module);
}
