package korvet.broker;

/** A test looks into the process of a broker, or stops it: its result says nothing about an outside broker. */
public final class InProcessException extends UnsupportedOperationException {
    private static final long serialVersionUID = 1;
    static final String BEGINNING = "only in the broker's process: ";

    public InProcessException(String what) {
        super(BEGINNING + what);
    }
}
