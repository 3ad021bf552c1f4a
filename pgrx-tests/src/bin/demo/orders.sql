CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text, price numeric);

CREATE FUNCTION emit_order_created() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM webhook_emit('order.created', to_jsonb(NEW));
    RETURN NULL;
END $$;

CREATE TRIGGER emit_order_created AFTER INSERT ON orders
    FOR EACH ROW EXECUTE FUNCTION emit_order_created();
