/* A parser of RESP2 with the methods of hiredis.Reader that Korvet uses, which leaves entries of streams as they are.

   What XRANGE answers within MULTI .. EXEC, the reads of logs, becomes Entries: no object is made of a field, and no
   byte is copied. All else becomes what hiredis makes of it. Source: the Redis documentation, "RESP protocol spec". */

#include "native.h"

#include <sys/socket.h>

#define DEPTH_MAX 8
#define LINE_BYTES_MAX (1 << 20) /* of a status, an error or a number */
#define ENTRIES_MIN 2
#define CAPACITY_MIN (1 << 17)
#define CAPACITY_KEPT (1 << 20) /* beyond it a buffer that is all but empty makes place for a smaller one */
#define RECEIVED_MIN (1 << 14)
#define RESERVED_MAX (64 << 20) /* on the word of a peer of which little has come */

typedef struct {
    PyObject_HEAD
    PyObject *error_of, *more, *protocol_error;
    PyObject *buffer;      /* bytes that nobody else has; NULL before the first feed */
    Py_ssize_t start, end; /* what of it is not parsed */
    PyObject *open[DEPTH_MAX]; /* the arrays that are being filled, and what they lack */
    int64_t lacks[DEPTH_MAX];
    int depth;
    int queued, executed; /* the reply before was QUEUED; this one is of EXEC */
    int failed;           /* what comes next would be taken for something else */
    PyObject *starts;     /* of entries, from `start` on, while they are being looked for; else NULL */
    int64_t expected;
    Py_ssize_t found, at;
} Reader;

static int refuse(Reader *self, const char *what)
{
    PyErr_SetString(self->protocol_error, what);
    return -1;
}

/* Make room for `size` bytes more; keeps what is not parsed. */
static int reserve(Reader *self, Py_ssize_t size)
{
    Py_ssize_t held = self->end - self->start, capacity = self->buffer ? PyBytes_GET_SIZE(self->buffer) : 0;
    if (size > PY_SSIZE_T_MAX / 4 - held) {
        PyErr_NoMemory();
        return 0;
    }
    int kept = self->starts || capacity <= CAPACITY_KEPT || held + size > CAPACITY_KEPT;
    if (kept && size <= capacity - self->end)
        return 1;
    if (kept && held + size <= capacity / 2) {
        char *to = PyBytes_AS_STRING(self->buffer);
        memmove(to, to + self->start, held);
    } else {
        Py_ssize_t wanted = 2 * (held + size);
        if (self->starts && self->found) {
            double all = (double)self->at / self->found * self->expected * 1.05;
            Py_ssize_t likely = all < RESERVED_MAX ? (Py_ssize_t)all + size : RESERVED_MAX;
            wanted = likely > held + size ? likely : wanted;
        }
        PyObject *larger = PyBytes_FromStringAndSize(NULL, wanted > CAPACITY_MIN ? wanted : CAPACITY_MIN);
        if (!larger)
            return 0;
        if (held)
            memcpy(PyBytes_AS_STRING(larger), data_of(self->buffer) + self->start, held);
        Py_XSETREF(self->buffer, larger);
    }
    self->start = 0;
    self->end = held;
    return 1;
}

static PyObject *Reader_feed(Reader *self, PyObject *args)
{
    Py_buffer given;
    Py_ssize_t offset = 0, size = -1;
    if (!PyArg_ParseTuple(args, "y*|nn", &given, &offset, &size))
        return NULL;
    if (size < 0)
        size = given.len - offset;
    if (offset < 0 || offset > given.len || size < 0 || size > given.len - offset) {
        PyBuffer_Release(&given);
        PyErr_SetString(PyExc_ValueError, "no part of what was given");
        return NULL;
    }
    int done = reserve(self, size);
    if (done) {
        memcpy(PyBytes_AS_STRING(self->buffer) + self->end, (const char *)given.buf + offset, size);
        self->end += size;
    }
    PyBuffer_Release(&given);
    self->failed |= !done;
    if (!done)
        return NULL;
    Py_RETURN_NONE;
}

/* Take in what a socket has, as recv does: the kernel puts it where it is parsed. */
static PyObject *Reader_receive(Reader *self, PyObject *args)
{
    int socket;
    Py_ssize_t size_max;
    if (!PyArg_ParseTuple(args, "in", &socket, &size_max))
        return NULL;
    if (size_max <= 0) {
        PyErr_SetString(PyExc_ValueError, "no room");
        return NULL;
    }
    Py_ssize_t room = self->buffer && self->start < self->end ? PyBytes_GET_SIZE(self->buffer) - self->end : 0;
    if (room >= RECEIVED_MIN && room < size_max)
        size_max = room; /* the rest of a reply may fit, which else would have to move */
    else if (!reserve(self, size_max))
        return NULL;
    ssize_t size = recv(socket, PyBytes_AS_STRING(self->buffer) + self->end, size_max, MSG_DONTWAIT);
    if (size < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    self->end += size;
    return PyLong_FromSsize_t(size);
}

int read_long_number(const char **from, const char *end, int64_t *number)
{
    const char *at = *from, *first;
    int negative = at < end && *at == '-';
    uint64_t value = 0, limit = (uint64_t)INT64_MAX + negative;
    for (first = at += negative; at < end && *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *at - '0', &value)
            || value > limit)
            return -1;
    if (at == end || (at + 1 == end && *at == '\r'))
        return at - first > 19 ? -1 : 0;
    if (at == first || at[0] != '\r' || at[1] != '\n')
        return -1;
    *number = negative ? (int64_t)(0 - value) : (int64_t)value;
    *from = at + 2;
    return 1;
}

/* Hand over what was found, and go on behind it. */
static PyObject *take_entries(Reader *self)
{
    Py_ssize_t size = self->at, tail = self->end - self->start - size;
    PyObject *starts = self->starts, *data;
    self->starts = NULL;
    if (size >= PyBytes_GET_SIZE(self->buffer) / 2) {
        /* All of the buffer: what comes next gets another one. */
        PyObject *next = PyBytes_FromStringAndSize(NULL, tail > CAPACITY_MIN ? tail : CAPACITY_MIN);
        if (!next) {
            Py_DECREF(starts);
            return NULL;
        }
        memcpy(PyBytes_AS_STRING(next), data_of(self->buffer) + self->start + size, tail);
        Py_ssize_t *start = (Py_ssize_t *)PyBytes_AS_STRING(starts);
        for (Py_ssize_t entry = 0; entry < self->found; entry++)
            start[entry] += self->start;
        data = self->buffer;
        self->buffer = next;
        self->start = 0;
        self->end = tail;
    } else {
        data = PyBytes_FromStringAndSize(data_of(self->buffer) + self->start, size);
        self->start += size;
        if (!data) {
            Py_DECREF(starts);
            return NULL;
        }
    }
    return new_entries(data, starts, self->found);
}

static int open_array(Reader *self, int64_t size, PyObject **value)
{
    if (self->depth == DEPTH_MAX)
        return refuse(self, "arrays that lie too deep");
    PyObject *array = PyList_New(0); /* which grows as its elements come, whatever was announced */
    if (!array)
        return -1;
    if (!size) {
        *value = array;
        return 1;
    }
    if (!self->depth) {
        self->executed = self->queued;
        self->queued = 0;
    }
    self->open[self->depth] = array;
    self->lacks[self->depth++] = size;
    return 1;
}

/* Look on for entries: 1 with all of them, or without, the array opened, if it has something else; 0 if not all came. */
static int find_entries(Reader *self, PyObject **value)
{
    const char *begin = data_of(self->buffer) + self->start, *end = data_of(self->buffer) + self->end;
    const char *at = begin + self->at;
    while (self->found < self->expected) {
        int status = skip_entry(&at, end);
        if (status < 0) {
            Py_CLEAR(self->starts);
            return open_array(self, self->expected, value);
        }
        if (!status)
            return 0;
        Py_ssize_t room = PyBytes_GET_SIZE(self->starts) / (Py_ssize_t)sizeof(Py_ssize_t);
        if (self->found == room && _PyBytes_Resize(&self->starts, 2 * room * (Py_ssize_t)sizeof(Py_ssize_t)))
            return -1;
        ((Py_ssize_t *)PyBytes_AS_STRING(self->starts))[self->found++] = self->at;
        self->at = at - begin;
    }
    *value = take_entries(self);
    return *value ? 1 : -1;
}

static int read_line(Reader *self, const char *at, const char *end, PyObject **value)
{
    const char *stop = memchr(at, '\r', end - at);
    if (!stop && end - at > LINE_BYTES_MAX)
        return refuse(self, "a line without an end");
    if (!stop || stop + 1 == end)
        return 0;
    if (stop[1] != '\n')
        return refuse(self, "a line with a carriage return in it");
    if (at[-1] == '+')
        *value = PyBytes_FromStringAndSize(at, stop - at);
    else {
        PyObject *text = PyUnicode_DecodeUTF8(at, stop - at, "replace");
        *value = text ? PyObject_CallOneArg(self->error_of, text) : NULL;
        Py_XDECREF(text);
    }
    if (!*value)
        return -1;
    self->queued = !self->depth && at[-1] == '+' && stop - at == 6 && !memcmp(at, "QUEUED", 6);
    self->start = stop + 2 - data_of(self->buffer);
    return 1;
}

/* Read what comes next: 1 with a value, or without if that is an array that was opened; 0 if it has not all come. */
static int read_next(Reader *self, PyObject **value)
{
    if (self->start == self->end)
        return 0;
    const char *base = data_of(self->buffer), *at = base + self->start, *end = base + self->end;
    char letter = *at++;
    if (letter == '+' || letter == '-')
        return read_line(self, at, end, value);
    if (letter != ':' && letter != '$' && letter != '*')
        return refuse(self, "a reply of an unknown kind");
    int64_t number = 0;
    int status = read_number(&at, end, &number);
    if (status < 0)
        return refuse(self, "a number that is none");
    if (!status)
        return 0;
    if (letter == ':')
        *value = PyLong_FromLongLong(number);
    else if (number == -1)
        *value = Py_NewRef(Py_None);
    else if (number < 0 || number > (letter == '$' ? BULK_BYTES_MAX : (int64_t)UINT32_MAX))
        return refuse(self, "a length out of range");
    else if (letter == '*') {
        self->start = at - base;
        if (self->depth == 1 && self->executed && number >= ENTRIES_MIN) {
            self->expected = number;
            self->found = self->at = 0;
            self->starts = PyBytes_FromStringAndSize(NULL, 64 * sizeof(Py_ssize_t));
            return self->starts ? find_entries(self, value) : -1;
        }
        return open_array(self, number, value);
    } else {
        if (end - at < number + 2)
            return 0;
        if (at[number] != '\r' || at[number + 1] != '\n')
            return refuse(self, "a string of another length than it says");
        *value = PyBytes_FromStringAndSize(at, number);
        at += number + 2;
    }
    if (!*value)
        return -1;
    if (!self->depth)
        self->queued = 0;
    self->start = at - base;
    return 1;
}

/* Return nothing, once and for all. */
static PyObject *fail(Reader *self)
{
    self->failed = 1;
    return NULL;
}

static PyObject *Reader_gets(Reader *self, PyObject *Py_UNUSED(ignored))
{
    if (self->failed) {
        PyErr_SetString(self->protocol_error, "what came before was not read");
        return NULL;
    }
    for (;;) {
        PyObject *value = NULL;
        int status = self->starts ? find_entries(self, &value) : read_next(self, &value);
        if (status < 0)
            return fail(self);
        if (!status)
            return Py_NewRef(self->more);
        while (value && self->depth) {
            PyObject *array = self->open[self->depth - 1];
            int failed = PyList_Append(array, value);
            Py_DECREF(value);
            if (failed)
                return fail(self);
            value = NULL;
            if (!--self->lacks[self->depth - 1]) {
                value = array;
                self->open[--self->depth] = NULL;
            }
        }
        if (value)
            return value;
    }
}

static PyObject *Reader_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named))
{
    PyObject *error_of, *more, *protocol_error;
    if (!PyArg_ParseTuple(args, "OOO", &error_of, &more, &protocol_error))
        return NULL;
    Reader *self = (Reader *)type->tp_alloc(type, 0); /* of zeros */
    if (self) {
        self->error_of = Py_NewRef(error_of);
        self->more = Py_NewRef(more);
        self->protocol_error = Py_NewRef(protocol_error);
    }
    return (PyObject *)self;
}

static void Reader_dealloc(Reader *self)
{
    Py_XDECREF(self->error_of);
    Py_XDECREF(self->more);
    Py_XDECREF(self->protocol_error);
    Py_XDECREF(self->buffer);
    Py_XDECREF(self->starts);
    while (self->depth)
        Py_DECREF(self->open[--self->depth]);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef methods[] = {
    {"feed", (PyCFunction)Reader_feed, METH_VARARGS,
        "feed(data, offset=0, size=-1, /)\n--\n\nTake in what has come; it is copied."},
    {"receive", (PyCFunction)Reader_receive, METH_VARARGS,
        "receive(socket, size_max, /)\n--\n\nTake in what a socket has at once, and return how many bytes; OSError."},
    {"gets", (PyCFunction)Reader_gets, METH_NOARGS,
        "gets()\n--\n\nReturn the next reply, or `more`; raises `protocol_error` for what is not RESP2."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject Reader_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "korvet.native.Reader",
    .tp_doc = "Reader(error_of, more, protocol_error, /)\n--\n\nA parser of RESP2: error replies are what `error_of` "
              "makes of them.",
    .tp_basicsize = sizeof(Reader),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Reader_new,
    .tp_dealloc = (destructor)Reader_dealloc,
    .tp_methods = methods,
};
