/* Entries of streams that lie in a reply as Redis sent them, and what is read from them without an object for each. */

#include "native.h"

#define STRINGS_MAX (1 << 16) /* of an entry that is not made a list at once: it is looked through at each feed */
#define FIELDS_MAX 1024       /* of an entry that columns are made of */
#define MS_DIGITS 18

/* --- Entries and columns, which are sequences --------------------------------------------------------------------- */

/* Go past a string that is not null, and return it as a part; 1, 0 if it has not all come, -1 if it is none. */
static int skip_string(const char *base, const char **from, const char *end, Part *part)
{
    const char *at = *from;
    int64_t size;
    if (at == end)
        return 0;
    if (*at++ != '$')
        return -1;
    int status = read_number(&at, end, &size);
    if (status <= 0)
        return status;
    if (size < 0 || size > BULK_BYTES_MAX)
        return -1;
    if (end - at < size + 2)
        return 0;
    if (at[size] != '\r' || at[size + 1] != '\n')
        return -1;
    part->at = at - base;
    part->size = size;
    *from = at + size + 2;
    return 1;
}

/* Go past the beginning of an array, and return how many elements it has; 1, 0, -1 as above. */
static int skip_array(const char **from, const char *end, int64_t *size)
{
    const char *at = *from;
    if (at == end)
        return 0;
    if (*at++ != '*')
        return -1;
    int status = read_number(&at, end, size);
    if (status > 0)
        *from = at;
    return status;
}

/* Go to the fields of an entry, and return its id and how many strings these are; 1, 0, -1 as above. */
static int enter(const char *base, const char **from, const char *end, Part *id, int64_t *strings)
{
    int64_t two;
    int status = skip_array(from, end, &two);
    if (status > 0)
        status = two == 2 ? skip_string(base, from, end, id) : -1;
    if (status > 0)
        status = skip_array(from, end, strings);
    return status > 0 && (*strings < 2 || *strings % 2 || *strings > STRINGS_MAX) ? -1 : status;
}

int skip_entry(const char **from, const char *end)
{
    const char *at = *from;
    Part part;
    int64_t strings;
    int status = enter(at, &at, end, &part, &strings);
    for (int64_t string = 0; status > 0 && string < strings; string++)
        status = skip_string(at, &at, end, &part);
    if (status > 0)
        *from = at;
    return status;
}

PyObject *new_entries(PyObject *data, PyObject *starts, Py_ssize_t count)
{
    Entries *self = PyObject_New(Entries, &Entries_Type);
    if (!self) {
        Py_DECREF(data);
        Py_DECREF(starts);
        return NULL;
    }
    self->data = data;
    self->starts = starts;
    self->count = count;
    return (PyObject *)self;
}

static void Entries_dealloc(Entries *self)
{
    Py_DECREF(self->data);
    Py_DECREF(self->starts);
    PyObject_Free(self);
}

static Py_ssize_t Entries_length(Entries *self)
{
    return self->count;
}

static const char *start_of(Entries *self, Py_ssize_t at)
{
    return data_of(self->data) + ((const Py_ssize_t *)data_of(self->starts))[at];
}

static const char *end_of(PyObject *data)
{
    return data_of(data) + PyBytes_GET_SIZE(data);
}

static PyObject *bytes_of(PyObject *data, Part part)
{
    return PyBytes_FromStringAndSize(data_of(data) + part.at, part.size);
}

static PyObject *Entries_item(Entries *self, Py_ssize_t index)
{
    if (index < 0 || index >= self->count) {
        PyErr_SetString(PyExc_IndexError, "no such entry");
        return NULL;
    }
    const char *base = data_of(self->data), *at = start_of(self, index), *end = end_of(self->data);
    Part part;
    int64_t strings;
    enter(base, &at, end, &part, &strings);
    PyObject *id = bytes_of(self->data, part), *fields = PyList_New(strings);
    for (int64_t string = 0; fields && string < strings; string++) {
        skip_string(base, &at, end, &part);
        PyObject *content = bytes_of(self->data, part);
        if (!content)
            Py_CLEAR(fields);
        else
            PyList_SET_ITEM(fields, string, content);
    }
    PyObject *entry = id && fields ? PyList_New(2) : NULL;
    if (!entry) {
        Py_XDECREF(id);
        Py_XDECREF(fields);
        return NULL;
    }
    PyList_SET_ITEM(entry, 0, id);
    PyList_SET_ITEM(entry, 1, fields);
    return entry;
}

static PySequenceMethods entries_as_sequence = {
    .sq_length = (lenfunc)Entries_length, .sq_item = (ssizeargfunc)Entries_item};

PyTypeObject Entries_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "korvet.native.Entries",
    .tp_doc = "What XRANGE answered: a sequence of [id, [field, value, ...]], each built at its access.",
    .tp_basicsize = sizeof(Entries),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_SEQUENCE,
    .tp_dealloc = (destructor)Entries_dealloc,
    .tp_as_sequence = &entries_as_sequence,
};

static PyObject *new_column(PyObject *data, PyObject *parts, Py_ssize_t count, Py_ssize_t width, Py_ssize_t field)
{
    Column *self = PyObject_New(Column, &Column_Type);
    if (self) {
        self->data = Py_NewRef(data);
        self->parts = Py_NewRef(parts);
        self->count = count;
        self->width = width;
        self->field = field;
    }
    return (PyObject *)self;
}

static void Column_dealloc(Column *self)
{
    Py_DECREF(self->data);
    Py_DECREF(self->parts);
    PyObject_Free(self);
}

static Py_ssize_t Column_length(Column *self)
{
    return self->count;
}

static PyObject *Column_item(Column *self, Py_ssize_t index)
{
    if (index < 0 || index >= self->count) {
        PyErr_SetString(PyExc_IndexError, "no such record");
        return NULL;
    }
    return bytes_of(self->data, column_part((PyObject *)self, index));
}

static PyObject *Column_subscript(Column *self, PyObject *key)
{
    if (!PySlice_Check(key)) {
        Py_ssize_t index = PyNumber_AsSsize_t(key, PyExc_IndexError);
        if (index == -1 && PyErr_Occurred())
            return NULL;
        return Column_item(self, index < 0 ? index + self->count : index);
    }
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(key, &start, &stop, &step))
        return NULL;
    Py_ssize_t count = PySlice_AdjustIndices(self->count, &start, &stop, step);
    PyObject *some = PyList_New(count);
    for (Py_ssize_t at = 0; some && at < count; at++) {
        PyObject *content = Column_item(self, start + at * step);
        if (!content)
            Py_CLEAR(some);
        else
            PyList_SET_ITEM(some, at, content);
    }
    return some;
}

static PySequenceMethods column_as_sequence = {
    .sq_length = (lenfunc)Column_length, .sq_item = (ssizeargfunc)Column_item};
static PyMappingMethods column_as_mapping = {
    .mp_length = (lenfunc)Column_length, .mp_subscript = (binaryfunc)Column_subscript};

PyTypeObject Column_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "korvet.native.Column",
    .tp_doc = "What one field of entries holds: a sequence of bytes, each built at its access.",
    .tp_basicsize = sizeof(Column),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_SEQUENCE,
    .tp_dealloc = (destructor)Column_dealloc,
    .tp_as_sequence = &column_as_sequence,
    .tp_as_mapping = &column_as_mapping,
};

/* --- format record ------------------------------------------------------------------------------------------------ */

static int same_part(const char *base, Part one, Part other)
{
    return one.size == other.size && !memcmp(base + one.at, base + other.at, one.size);
}

/* Note the id and the values of an entry; 0 if it has other fields than the first, `names`. */
static int note_parts(Entries *self, Py_ssize_t at, Part *parts, const Part *names, int64_t strings)
{
    const char *base = data_of(self->data), *from = start_of(self, at), *end = end_of(self->data);
    int64_t found;
    if (enter(base, &from, end, parts, &found) <= 0 || found != strings)
        return 0;
    for (int64_t field = 0; field < strings / 2; field++) {
        Part name;
        skip_string(base, &from, end, &name);
        skip_string(base, &from, end, &parts[1 + field]);
        if (!same_part(base, name, names[field]))
            return 0;
    }
    return 1;
}

PyObject *split_entries(PyObject *Py_UNUSED(module), PyObject *entries)
{
    if (!Py_IS_TYPE(entries, &Entries_Type))
        Py_RETURN_NONE;
    Entries *self = (Entries *)entries;
    const char *base = data_of(self->data), *at = start_of(self, 0), *end = end_of(self->data);
    Part id, names[FIELDS_MAX], ignored;
    int64_t strings;
    enter(base, &at, end, &id, &strings);
    if (strings > 2 * FIELDS_MAX)
        Py_RETURN_NONE;
    Py_ssize_t fields = strings / 2, width = fields + 1, count = self->count;
    for (Py_ssize_t field = 0; field < fields; field++) {
        skip_string(base, &at, end, &names[field]);
        skip_string(base, &at, end, &ignored);
    }
    if (count > PY_SSIZE_T_MAX / width / (Py_ssize_t)sizeof(Part))
        Py_RETURN_NONE;
    PyObject *table = PyBytes_FromStringAndSize(NULL, count * width * (Py_ssize_t)sizeof(Part));
    if (!table)
        return NULL;
    Part *parts = (Part *)PyBytes_AS_STRING(table);
    for (Py_ssize_t entry = 0; entry < count; entry++)
        if (!note_parts(self, entry, parts + entry * width, names, strings)) {
            Py_DECREF(table);
            Py_RETURN_NONE;
        }
    PyObject *ids = new_column(self->data, table, count, width, 0);
    PyObject *texts = PyList_New(fields), *columns = PyList_New(fields), *found = NULL;
    for (Py_ssize_t field = 0; texts && columns && field < fields; field++) {
        PyObject *name = bytes_of(self->data, names[field]);
        PyObject *column = new_column(self->data, table, count, width, 1 + field);
        if (name)
            PyList_SET_ITEM(texts, field, name);
        if (column)
            PyList_SET_ITEM(columns, field, column);
        if (!name || !column)
            Py_CLEAR(texts);
    }
    if (ids && texts && columns)
        found = PyTuple_Pack(3, ids, texts, columns);
    Py_XDECREF(ids);
    Py_XDECREF(texts);
    Py_XDECREF(columns);
    Py_DECREF(table);
    return found;
}

int64_t parse_digits(const char *text, Py_ssize_t size)
{
    int64_t number = 0;
    if (!size || size > MS_DIGITS)
        return -1;
    for (const char *end = text + size; text < end; text++) {
        if (*text < '0' || *text > '9')
            return -1;
        number = number * 10 + (*text - '0');
    }
    return number;
}

/* Return the offset of an id, -1 if that is none below `end`. */
static int64_t offset_of(const char *text, Py_ssize_t size, int64_t bits, int64_t end)
{
    const char *dash = memchr(text, '-', size);
    if (!dash)
        return -1;
    int64_t ms = parse_digits(text, dash - text), low = parse_digits(dash + 1, text + size - dash - 1);
    if (ms < 0 || low < 0 || low >> bits || ms > INT64_MAX >> bits)
        return -1;
    int64_t offset = (ms << bits) + low;
    return offset < end ? offset : -1;
}

static int add_run(PyObject *runs, int64_t start, int64_t stop)
{
    PyObject *run = PyObject_CallFunction((PyObject *)&PyRange_Type, "LL", (long long)start, (long long)stop);
    int failed = !run || PyList_Append(runs, run);
    Py_XDECREF(run);
    return !failed;
}

PyObject *parse_runs(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *ids;
    long long bits, end;
    if (!PyArg_ParseTuple(args, "OLL", &ids, &bits, &end))
        return NULL;
    if (!Py_IS_TYPE(ids, &Column_Type) || bits < 0 || bits > 62)
        Py_RETURN_NONE;
    PyObject *runs = PyList_New(0);
    int64_t start = 0, stop = -1;
    for (Py_ssize_t at = 0; runs && at < ((Column *)ids)->count; at++) {
        Part id = column_part(ids, at);
        int64_t offset = offset_of(data_of(((Column *)ids)->data) + id.at, id.size, bits, end);
        if (offset < 0 || offset < stop) {
            Py_DECREF(runs);
            Py_RETURN_NONE;
        }
        if (offset != stop) {
            if (stop >= 0 && !add_run(runs, start, stop))
                Py_CLEAR(runs);
            start = offset;
        }
        stop = offset + 1;
    }
    if (runs && !add_run(runs, start, stop))
        Py_CLEAR(runs);
    return runs;
}

/* --- format batch ------------------------------------------------------------------------------------------------- */

#define HEADER_BYTES 61 /* of a record batch, and where its fields are: Kafka's documentation, "Record Batch" */
#define LENGTH_FROM 12
#define LENGTH_AT 8
#define MAGIC_AT 16
#define LAST_DELTA_AT 23
#define RECORD_COUNT_AT 57
#define MAGIC 2
#define STRINGS_PLAIN 2 /* of an entry: batch, and maybe how it is compressed at rest */
#define STRINGS_ENCODED 4

static int64_t int32_at(const char *at)
{
    const unsigned char *byte = (const unsigned char *)at;
    return (int32_t)((uint32_t)byte[0] << 24 | (uint32_t)byte[1] << 16 | (uint32_t)byte[2] << 8 | byte[3]);
}

static int says(const char *base, Part part, const char *text)
{
    return part.size == (Py_ssize_t)strlen(text) && !memcmp(base + part.at, text, part.size);
}

/* Return what `decompress` makes of a batch's records, None if it makes nothing of them. */
static PyObject *decompressed(PyObject *decompress, PyObject *data, Part stored, Part encoding, int64_t size)
{
    Part frame = {stored.at + HEADER_BYTES, stored.size - HEADER_BYTES};
    PyObject *content = bytes_of(data, frame), *name = bytes_of(data, encoding), *plain = NULL;
    if (content && name)
        plain = PyObject_CallFunction(decompress, "OOL", content, name, (long long)size);
    Py_XDECREF(content);
    Py_XDECREF(name);
    return plain;
}

/* Return one entry as `kind`; Py_None if it is for Python, and no value below offset `end` if it lies past that. */
static PyObject *read_batch(Entries *self, Py_ssize_t entry, int64_t end, PyObject *view, PyObject *kind,
    PyObject *decompress, int *past)
{
    const char *base = data_of(self->data), *from = start_of(self, entry), *stop = end_of(self->data);
    Part id, part[STRINGS_ENCODED];
    int64_t strings;
    enter(base, &from, stop, &id, &strings);
    if (id.size < 3 || memcmp(base + id.at, "0-", 2)
        || (strings != STRINGS_PLAIN && strings != STRINGS_ENCODED))
        return Py_NewRef(Py_None);
    for (int64_t string = 0; string < strings; string++)
        skip_string(base, &from, stop, &part[string]);
    int64_t next_offset = parse_digits(base + id.at + 2, id.size - 2);
    if (next_offset > end) {
        *past = 1;
        return Py_NewRef(Py_None);
    }
    Part stored = part[1];
    if (next_offset < 0 || !says(base, part[0], "batch") || stored.size < HEADER_BYTES
        || (strings == STRINGS_ENCODED && !says(base, part[2], "korvet.encoding")))
        return Py_NewRef(Py_None);
    const char *header = base + stored.at;
    int64_t size = int32_at(header + LENGTH_AT) + LENGTH_FROM, last_delta = int32_at(header + LAST_DELTA_AT);
    if (header[MAGIC_AT] != MAGIC || size < HEADER_BYTES || last_delta < 0 || last_delta >= next_offset
        || (strings == STRINGS_PLAIN && size != stored.size))
        return Py_NewRef(Py_None);
    PyObject *plain = Py_NewRef(Py_None);
    if (strings == STRINGS_ENCODED) {
        Py_SETREF(plain, decompressed(decompress, self->data, stored, part[3], size - HEADER_BYTES));
        if (!plain)
            return NULL;
        if (!PyBytes_CheckExact(plain) || PyBytes_GET_SIZE(plain) != size - HEADER_BYTES) {
            Py_DECREF(plain);
            return Py_NewRef(Py_None);
        }
    }
    PyObject *bytes = PySequence_GetSlice(view, stored.at, stored.at + stored.size);
    if (!bytes) {
        Py_DECREF(plain);
        return NULL;
    }
    return PyObject_CallFunction(kind, "LLLLNN", (long long)(next_offset - last_delta - 1), (long long)next_offset,
        (long long)size, (long long)int32_at(header + RECORD_COUNT_AT), bytes, plain);
}

PyObject *read_batches(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *entries, *kind, *decompress;
    long long end;
    if (!PyArg_ParseTuple(args, "OLOO", &entries, &end, &kind, &decompress))
        return NULL;
    if (!Py_IS_TYPE(entries, &Entries_Type))
        Py_RETURN_NONE;
    Entries *self = (Entries *)entries;
    PyObject *view = PyMemoryView_FromObject(self->data), *batches = PyList_New(0);
    int past = 0;
    for (Py_ssize_t entry = 0; view && batches && !past && entry < self->count; entry++) {
        PyObject *batch = read_batch(self, entry, end, view, kind, decompress, &past);
        if (!batch || (batch != Py_None && PyList_Append(batches, batch)))
            Py_CLEAR(batches);
        else if (batch == Py_None && !past)
            Py_SETREF(batches, Py_NewRef(Py_None));
        Py_XDECREF(batch);
        if (batches == Py_None)
            break;
    }
    if (!view)
        Py_CLEAR(batches);
    Py_XDECREF(view);
    return batches;
}
