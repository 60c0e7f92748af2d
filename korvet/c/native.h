/* What the files of korvet.native share.

   Optional: hatch_build.py compiles it with COMPILED=1, and everywhere else Python does the same. Whatever a function
   was not made for it leaves to Python, by returning None; the only errors that functions raise are MemoryError, and
   TypeError and OverflowError for other arguments than Korvet calls them with. */

#ifndef KORVET_NATIVE_H
#define KORVET_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* A part of a reply: where it begins in the bytes that hold it, and its size. */
typedef struct {
    Py_ssize_t at, size;
} Part;

/* The entries of a stream as Redis sent them: `starts` has where each begins in `data`, as an array of Py_ssize_t. */
typedef struct {
    PyObject_HEAD
    PyObject *data, *starts;
    Py_ssize_t count;
} Entries;

/* What one field holds, entry after entry: `parts` has an array of Part, `width` for each entry. */
typedef struct {
    PyObject_HEAD
    PyObject *data, *parts;
    Py_ssize_t count, width, field;
} Column;

extern PyTypeObject Entries_Type, Column_Type, Reader_Type;

static inline const char *data_of(PyObject *bytes)
{
    return PyBytes_AS_STRING(bytes);
}

static inline Part column_part(PyObject *column, Py_ssize_t at)
{
    Column *self = (Column *)column;
    return ((const Part *)data_of(self->parts))[at * self->width + self->field];
}

#define BULK_BYTES_MAX (512 << 20) /* of a string: proto-max-bulk-len */

/* Read what RESP has after the letter of a length or a number, and go past it: 1, 0 if it has not all come, -1 if it is
   no decimal int64. */
int read_long_number(const char **from, const char *end, int64_t *number);

/* The same, without a call for what nearly every number is: one to four digits that have all come. */
static inline int read_number(const char **from, const char *end, int64_t *number)
{
    const char *at = *from;
    if (end - at >= 6 && *at >= '0' && *at <= '9') {
        int64_t value = *at++ - '0';
        for (int more = 3; more && *at >= '0' && *at <= '9'; more--)
            value = value * 10 + (*at++ - '0');
        if (at[0] == '\r' && at[1] == '\n') {
            *number = value;
            *from = at + 2;
            return 1;
        }
    }
    return read_long_number(from, end, number);
}

/* Go past one entry, [id, [field, value, ...]] of nothing but strings: 1, 0 if it has not all come, -1 if it is none. */
int skip_entry(const char **from, const char *end);

/* Return new Entries, and take over both references; NULL with an error set. */
PyObject *new_entries(PyObject *data, PyObject *starts, Py_ssize_t count);

/* Number a column holds at `at`, if it is of 1 to 18 digits and nothing else; else -1. */
int64_t parse_digits(const char *text, Py_ssize_t size);

PyObject *split_entries(PyObject *module, PyObject *entries);
PyObject *parse_runs(PyObject *module, PyObject *args);
PyObject *read_batches(PyObject *module, PyObject *args);

#endif
